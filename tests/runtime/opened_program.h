// The example program, opened and called by the C interface.
#pragma once

#include "check.h"
#include "programs.h"
#include "tenon.h"

namespace tests {

enum { kScale, kAccumulate, kSpread, kMostThreads };

inline tenon_tensor tensor_of(void* data, const std::vector<int64_t>& sizes, int32_t dtype = 6) {
  tenon_tensor tensor{};
  tensor.size = sizeof(tensor);
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<int32_t>(sizes.size());
  tensor.nbytes = tenon::item_size(static_cast<tenon::DType>(dtype));
  for (size_t d = 0; d < sizes.size(); ++d)
    tensor.nbytes *= static_cast<uint64_t>(tensor.sizes[d] = sizes[d]);
  return tensor;
}

// Any number of outputs, which the run allocates.
struct Outputs {
  explicit Outputs(size_t count) : all(count) {
    for (auto& tensor : all)
      tensor.size = sizeof(tensor);
  }
  ~Outputs() {
    for (auto& tensor : all)
      tenon_free(tensor.data);
  }
  const float* floats(size_t k) const {
    return static_cast<const float*>(all[k].data);
  }
  std::vector<tenon_tensor> all;
};

struct Opened {
  tenon_program* program = nullptr;
  explicit Opened(const std::string& path, tenon_options options = {}) {
    options.size = sizeof(options);
    tenon_status status{};
    if (tenon_open_program(path.c_str(), &options, &program, &status) != TENON_OK)
      throw tenon::Error(static_cast<tenon::ErrorKind>(status.code), status.text);
  }
  ~Opened() {
    tenon_close_program(program);
  }
  void run(size_t method, const std::vector<tenon_tensor>& inputs, Outputs& outputs) const {
    tenon_status status{};
    if (tenon_run(
            program,
            method,
            inputs.data(),
            inputs.size(),
            outputs.all.data(),
            outputs.all.size(),
            &status) != TENON_OK)
      throw tenon::Error(static_cast<tenon::ErrorKind>(status.code), status.text);
  }
};

// What the method `scale` gives.
inline void check_scaled(const Opened& opened, int64_t rows) {
  std::vector<float> x(static_cast<size_t>(rows) * 4);
  for (size_t k = 0; k < x.size(); ++k)
    x[k] = static_cast<float>(k);
  Outputs out(2);
  opened.run(kScale, {tensor_of(x.data(), {rows, 4})}, out);
  CHECK(out.all[0].rank == 2 && out.all[0].sizes[0] == rows && out.all[0].sizes[1] == 4);
  CHECK(out.all[0].dtype == TENON_FLOAT32 && out.all[0].nbytes == x.size() * 4);
  CHECK(reinterpret_cast<uintptr_t>(out.all[0].data) % 64 == 0);
  for (size_t k = 0; k < x.size(); ++k)
    CHECK(out.floats(0)[k] == x[k] * static_cast<float>(k % 4 + 1) + static_cast<float>(3 * rows));
  CHECK(out.floats(1)[0] == 1 && out.floats(1)[3] == 4);
}

// What the method `accumulate` gives.
inline std::vector<float> accumulated(const Opened& opened, float value) {
  std::vector<float> x(4, value);
  Outputs out(3);
  opened.run(kAccumulate, {tensor_of(x.data(), {4})}, out);
  for (size_t k = 1; k < 3; ++k)
    CHECK(std::memcmp(out.floats(0), out.floats(k), 16) == 0);
  return {out.floats(0), out.floats(0) + 4};
}

}  // namespace tests
