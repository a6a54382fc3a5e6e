"""`tenon doctor`: what is here, and what is missing."""

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from torch_tenon.cli.application import app


@app.command()
def doctor() -> None:
    """What is here, what is missing, and the command that installs it.

    Exit status 1 if something needed is missing.
    """
    from torch_tenon.cli.installation import examine

    console = Console()
    with Console(stderr=True).status("Looking around"):
        findings = examine()
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for finding in findings:
        mark = "[green]✓[/]" if finding.ok else "[red]✗[/]" if finding.needed else "[yellow]![/]"
        table.add_row(mark, escape(finding.name), escape(finding.text))
        if not finding.ok and finding.remedy:
            table.add_row("", "", f"[cyan]→ {escape(finding.remedy)}[/]")
    failed = any(finding.failed for finding in findings)
    title = "[red]something needed is missing[/]" if failed else "[green]all that is needed[/]"
    console.print(Panel(table, title=f"tenon doctor: {title}", title_align="left"))
    if failed:
        raise typer.Exit(1)
