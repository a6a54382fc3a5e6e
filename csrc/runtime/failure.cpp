#include "runtime/failure.h"

#include <exception>

namespace tenon {
namespace {

std::function<void()> captured(const std::string& where) {
  auto raised = std::current_exception();
  try {
    throw;
  } catch (const Error& error) {
    if (!where.empty())
      raised = std::make_exception_ptr(Error(error.kind, text_of("{}\n{}", error.what(), where)));
  } catch (...) {
  }
  return [raised] { std::rethrow_exception(raised); };
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
