#include "runtime/failure.h"

#include <exception>

namespace tenon {
namespace {

std::function<void()> captured(const std::string& where) {
  try {
    throw;
  } catch (const Error& error) {
    const auto text = where.empty() ? error.what() : text_of(error.what(), "\n", where);
    return [kind = error.kind, text] { throw Error(kind, text); };
  } catch (...) {
    return [raised = std::current_exception()] { std::rethrow_exception(raised); };
  }
}

std::atomic<Failure::Capture> g_capture{&captured};

}  // namespace

void Failure::set_capture(Capture capture) {
  g_capture = capture;
}

std::shared_ptr<Failure> Failure::current(const std::string& where) {
  return std::shared_ptr<Failure>(new Failure(g_capture.load()(where)));
}

std::shared_ptr<Failure> Failure::of(Error error) {
  try {
    throw std::move(error);
  } catch (...) {
    return current("");
  }
}

std::shared_ptr<Failure> Failure::with(const std::string& where) {
  try {
    raise_();
  } catch (...) {
    return current(where);
  }
  return nullptr;
}

void Failure::raise() {
  seen_ = true;
  raise_();
  throw std::logic_error("a failure has no error");
}

}  // namespace tenon
