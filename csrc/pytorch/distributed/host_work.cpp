#include "distributed/host_work.h"

#include <c10/util/Exception.h>

#include "device/interpreter.h"

namespace tenon {
namespace {

// The error with what is known of its reason.
std::exception_ptr explained(std::exception_ptr error, const Explain& explain) {
  if (!explain)
    return error;
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    text = e.what_without_backtrace();
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    return error;
  }
  try {
    C10_THROW_ERROR(DistBackendError, text + "\n" + explain());
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

HostWork::HostWork(
    c10::intrusive_ptr<c10d::Work> host,
    std::shared_ptr<HostTensors> tensors,
    c10::IValue results,
    Explain explain)
    : Work(-1, host->retrieveOpType()),
      host_(std::move(host)),
      tensors_(std::move(tensors)),
      results_(std::move(results)),
      explain_(std::move(explain)) {}

bool HostWork::isCompleted() {
  if (!host_->isCompleted())
    return false;
  if (host_->isSuccess())
    tensors_->bring_back();
  return true;
}

bool HostWork::isSuccess() const {
  return host_->isSuccess();
}

std::exception_ptr HostWork::exception() const {
  return host_->exception();
}

int HostWork::sourceRank() const {
  return host_->sourceRank();
}

std::vector<at::Tensor> HostWork::result() {
  TORCH_CHECK(isCompleted(), "Call wait() before result(): the collective is not over");
  if (results_.isTensorList())
    return results_.toTensorVector();
  TORCH_CHECK(false, "result() is for one list of tensors; get_future().value() has all");
}

void HostWork::synchronize() {
  host_->synchronize();
  tensors_->bring_back();
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  bool done = false;
  try {
    done = host_->wait(timeout);
  } catch (...) {
    std::rethrow_exception(explained(std::current_exception(), explain_));
  }
  if (done)
    tensors_->bring_back();
  return done;
}

void HostWork::blockCurrentStream() {
  wait();
}

void HostWork::abort() {
  host_->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::getFuture() {
  const WithoutInterpreter no_gil;  // a collective that is over runs what follows here
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_)
    return future_;
  const auto host = host_->getFuture();
  std::vector<c10::Device> devices;
  if (tensors_->device())
    devices.push_back(*tensors_->device());
  future_ = c10::make_intrusive<c10::ivalue::Future>(results_.type(), std::move(devices));
  host->addCallback([future = future_, tensors = tensors_, results = results_, explain = explain_](
                        c10::ivalue::Future& done) {
    try {
      if (done.hasError())
        std::rethrow_exception(explained(done.exception_ptr(), explain));
      tensors->bring_back();
      future->markCompleted(results);
    } catch (...) {
      future->setError(std::current_exception());
    }
  });
  return future_;
}

float HostWork::getDuration() const {
  return host_->getDuration();
}

uint64_t HostWork::getSequencenumber() const {
  return host_->getSequencenumber();
}

}  // namespace tenon
