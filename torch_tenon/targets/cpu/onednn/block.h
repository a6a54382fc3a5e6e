// One primitive of oneDNN, which a thread of a program runs on a part of a product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>

namespace tenon_onednn {

// While it lives, oneDNN keeps to the thread that calls it: the program's threads share the work.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

const dnnl::engine& engine();

// Whether the processor multiplies numbers of bfloat16.
bool has_bfloat16();

// Memory of this thread's own, kept between calls; by `number`, 0 or 1.
void* room(int number, size_t nbytes);

// The rows and columns of a product. Elements of memory are numbers of `dtype`.
struct ProductFacts {
  dnnl::memory::data_type dtype;
  int64_t m, n, k;
  int64_t a_strides[2], b_strides[2], c_step;
};

// Rows of places of an image whose channels are dense in memory. The weights may be laid out
// already.
struct ConvolutionFacts {
  int64_t channels, columns;  // of the result
  int64_t image[2], step[2], places[2], kernel[2], stride[2], dilation[2];
  int64_t before[2], after[2];  // zeros around the image
};

class Block {
 public:
  // nothing: oneDNN has no code of its own for this.
  static std::optional<Block> product(const ProductFacts& facts);
  static std::optional<Block> convolution(
      const ConvolutionFacts& facts, const dnnl::memory::desc* weights);

  // oneDNN's name of the code.
  const std::string& name() const {
    return name_;
  }
  const dnnl::memory::desc& weights() const {
    return weights_;
  }
  // Ends the process where it fails, as nothing can be done over then.
  void run(const void* source, const void* weights, void* result) const;

 private:
  template <class Made>
  static std::optional<Block> of(const Made& made);

  dnnl::primitive primitive_;
  dnnl::memory::desc source_, weights_, result_, scratchpad_;
  std::string name_;
};

}  // namespace tenon_onednn
