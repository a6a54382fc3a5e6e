// What most files of the core include of PyTorch and of the library. setup.py compiles it once and
// includes it in every file, since to read these headers takes longer than to compile a file.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
