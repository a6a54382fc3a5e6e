#include "kernels.h"

#include <cstdio>
#include <iterator>

namespace tenon::opencl {
namespace {

constexpr uint32_t kArgumentCount = 0x1191;    // CL_KERNEL_NUM_ARGS
constexpr uint32_t kBuildLog = 0x1183;         // CL_PROGRAM_BUILD_LOG
constexpr uint64_t kRoundsDivisions = 1 << 7;  // CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
constexpr size_t kWordsOfCheck = 4;            // its number, the value, the size, and one spare
constexpr const char* kOptions = "-w -cl-std=CL1.2";
constexpr const char* kRoundDivisions = " -cl-fp32-correctly-rounded-divide-sqrt";

bool read_end(const std::string& name, size_t& local, size_t& checks) {
  const auto last = name.rfind('_'), before = last > 0 ? name.rfind('_', last - 1) : last;
  if (last == std::string::npos || before == std::string::npos)
    return false;
  int length = 0;
  const char* end = name.c_str() + before;
  return std::sscanf(end, "_%5zu_%5zu%n", &local, &checks, &length) == 2 && end[length] == '\0' &&
         local > 0;
}

}  // namespace

Kernel::Kernel(const Driver& of, SharedProgram from, const std::string& called, size_t queues)
    : driver(of), program(std::move(from)), name(called) {
  size_t checks = 0;
  if (!read_end(name, local, checks))
    throw Failed(
        TENON_ERROR,
        "the kernel " + name +
            ": its name has to end in the work-items of a work-group and in the number of its "
            "checks, as k_64_0 does");
  status_words = checks * kWordsOfCheck;
  for (size_t k = 0; k < queues; ++k) {
    Code code = 0;
    auto* made = driver.clCreateKernel(program.get(), name.c_str(), &code);
    if (code != 0) {
      for (auto* object : by_queue)
        driver.clReleaseKernel(object);
      driver.check(code, ("making the kernel " + name).c_str());
    }
    by_queue.push_back(made);
    driver.clGetKernelInfo(made, kArgumentCount, sizeof(arguments), &arguments, nullptr);
  }
}

Kernel::~Kernel() {
  for (auto* object : by_queue)
    driver.clReleaseKernel(object);
}

std::unique_ptr<Kernel> Programs::load(std::string_view code, const std::string& entry) {
  // Held while a program is built, which another thread may ask for as well.
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto each = known_.begin(); each != known_.end();)
    each = each->second.expired() ? known_.erase(each) : std::next(each);
  const auto known = known_.find(code);
  auto program = known != known_.end() ? known->second.lock() : nullptr;
  if (!program) {
    program = build(code);
    known_.insert_or_assign(std::string(code), program);
  }
  return std::make_unique<Kernel>(driver_, std::move(program), entry, queues_);
}

SharedProgram Programs::build(std::string_view code) const {
  if (code.empty())
    throw Failed(TENON_DAMAGED, "there is no code to load");
  if (auto program = build_binary(code))
    return program;
  if (code.find('\0') != std::string_view::npos)
    throw Failed(
        TENON_DAMAGED,
        "the driver takes these bytes for no binary of its own, and they are no text");
  return build_text(code);
}

// None where the driver does not take it.
SharedProgram Programs::build_binary(std::string_view code) const {
  const auto& devices = driver_.devices;
  const auto count = static_cast<uint32_t>(devices.size());
  std::vector<const unsigned char*> starts(
      count, reinterpret_cast<const unsigned char*>(code.data()));
  const std::vector<size_t> sizes(count, code.size());
  Code error = 0;
  auto* made = driver_.clCreateProgramWithBinary(
      driver_.context, count, devices.data(), sizes.data(), starts.data(), nullptr, &error);
  if (error != 0)
    return nullptr;
  SharedProgram program(made, driver_.clReleaseProgram);
  const auto built = driver_.clBuildProgram(made, 0, nullptr, "", nullptr, nullptr);
  return built == 0 ? program : nullptr;
}

SharedProgram Programs::build_text(std::string_view code) const {
  const char* text = code.data();
  const size_t length = code.size();
  Code error = 0;
  auto* made = driver_.clCreateProgramWithSource(driver_.context, 1, &text, &length, &error);
  driver_.check(error, "taking a source");
  SharedProgram program(made, driver_.clReleaseProgram);
  Device device = driver_.devices[0];
  std::string options = kOptions;
  if ((driver_.number_of<uint64_t>(device, kSingleNumbers) & kRoundsDivisions) != 0)
    options += kRoundDivisions;
  error = driver_.clBuildProgram(made, 0, nullptr, options.c_str(), nullptr, nullptr);
  if (error == 0)
    return program;
  std::string log(1 << 16, '\0');
  driver_.clGetProgramBuildInfo(made, device, kBuildLog, log.size(), log.data(), nullptr);
  log.resize(log.find('\0') == std::string::npos ? log.size() : log.find('\0'));
  throw Failed(
      TENON_ERROR,
      "the OpenCL compiler of " + driver_.text_of(device, kDeviceName) + " failed with " +
          std::to_string(error) + "\n" + log);
}

}  // namespace tenon::opencl
