// Errors of PyTorch and of Python, kept to be raised later (runtime/failure.h).

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "device/held_object.h"
#include "runtime/failure.h"

namespace tenon {
namespace {

namespace py = pybind11;

// An exception of Python's, which raising hands to the interpreter: so each time it is another one,
// over the same Python objects.
// `where` is a note of it, unless it has one.
std::function<void()> python_exception(
    py::object type, py::object value, const std::string& where) {
  if (!where.empty() && py::hasattr(value, "add_note") && !py::hasattr(value, "__notes__"))
    value.attr("add_note")(where);
  return [type = held(std::move(type)), value = held(std::move(value))] {
    const py::gil_scoped_acquire gil;
    PyErr_SetObject(type->ptr(), value->ptr());
    python_error error;
    error.persist();
    throw python_error(std::move(error));
  };
}

// An error of the most derived of the types, with more to its text.
template <class... Types>
std::function<void()> copied(const c10::Error& error, const std::string& where) {
  std::exception_ptr made;
  const auto copy = [&](auto derived) {
    if (!where.empty())
      derived.add_context(where);
    made = std::make_exception_ptr(std::move(derived));
  };
  [[maybe_unused]] const auto as = [&](auto* derived) {
    if (derived != nullptr && !made)
      copy(*derived);
  };
  (as(dynamic_cast<const Types*>(&error)), ...);
  if (!made)
    copy(error);
  return [made] { std::rethrow_exception(made); };
}

// An error of the runtime's as PyTorch has it.
std::function<void()> translated(const Error& error, const std::string& where) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (error.kind) {
    case ErrorKind::out_of_range:
      return copied<c10::IndexError>(c10::IndexError(here, error.what()), where);
    case ErrorKind::out_of_memory:
      return copied<c10::OutOfMemoryError>(c10::OutOfMemoryError(here, error.what()), where);
    case ErrorKind::unsupported:
      return copied<c10::NotImplementedError>(c10::NotImplementedError(here, error.what()), where);
    default:
      return copied<>(c10::Error(here, error.what()), where);
  }
}

std::function<void()> capture(const std::string& where) {
  try {
    throw;
  } catch (python_error& error) {
    const py::gil_scoped_acquire gil;
    error.persist();  // as PyTorch throws it, the exception may still be the thread's current one
    return python_exception(
        py::reinterpret_borrow<py::object>(error.type),
        py::reinterpret_borrow<py::object>(error.value),
        where);
  } catch (py::error_already_set& error) {
    const py::gil_scoped_acquire gil;
    return python_exception(error.type(), error.value(), where);
  } catch (const Error& error) {
    return translated(error, where);
  } catch (const c10::Error& error) {
    return copied<
        c10::IndexError,
        c10::ValueError,
        c10::TypeError,
        c10::NotImplementedError,
        c10::LinAlgError,
        c10::OutOfMemoryError>(error, where);
  } catch (...) {
    return [raised = std::current_exception()] { std::rethrow_exception(raised); };
  }
}

const bool captured_errors_at_load [[maybe_unused]] = [] {
  Failure::set_capture(&capture);
  return true;
}();

}  // namespace
}  // namespace tenon
