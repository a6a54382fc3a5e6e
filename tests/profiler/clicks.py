"""Clicking through the page of a profile, as a person does who sees it for the first time."""

SECTIONS = ["time", "advice", "waits", "timeline", "kernels", "windows", "fusion", "memory"]


def shown(browser):
    """What the timeline shows: from where, to where, and how many events."""
    return browser.evaluate("document.querySelector('#timeline p[aria-live]').textContent")


def click_through(browser):
    """Uses each part of the page once, with mouse and keys."""
    filled = "[...document.querySelectorAll('section .body')].filter((b) => b.firstChild).length"
    assert browser.evaluate(filled) == len(SECTIONS)
    for k, name in enumerate(SECTIONS):
        browser.click("nav a", k)
        assert browser.evaluate("location.hash") == f"#{name}"
    heads = browser.evaluate("document.querySelectorAll('th button').length")
    for k in range(heads):
        browser.click("th button", k)
    for k in range(min(browser.evaluate("document.querySelectorAll('summary').length"), 12)):
        browser.click("summary", k)
    move_the_timeline(browser)
    browser.evaluate("scrollTo(0, 0)")


def move_the_timeline(browser):
    """Zooms and moves with buttons, keys, wheel and a drag; points at what is there."""
    everything = shown(browser)
    for k in range(5):
        browser.click("#timeline .tools button", k)
    browser.evaluate("document.querySelector('canvas').focus()")
    browser.press("+", "+", "ArrowRight", "-", "ArrowLeft", "End", "Home")
    settle(browser)
    assert shown(browser) != everything
    browser.press("0")
    settle(browser)
    assert shown(browser) == everything
    x, y, width = browser.evaluate(
        "(({ x, y, width }) => [x, y, width])(document.querySelector('canvas')"
        ".getBoundingClientRect())"
    )
    browser.mouse("mouseWheel", x + width / 3, y + 60, deltaX=0, deltaY=-400)
    settle(browser)
    assert shown(browser) != everything
    browser.mouse("mousePressed", x + width / 2, y + 60, button="left")
    browser.mouse("mouseMoved", x + width / 3, y + 60, button="left", buttons=1)
    browser.mouse("mouseReleased", x + width / 3, y + 60, button="left")
    for k in range(1, 20):
        browser.mouse("mouseMoved", x + width * k / 20, y + 30 + 8 * k, button="none")


def settle(browser):
    """Waits until what was asked for is drawn."""
    browser.wait(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
    )
