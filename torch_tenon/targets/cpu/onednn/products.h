// The products and convolutions of one program: which oneDNN does, and how they are cut into parts.
#pragma once

#include <atomic>
#include <mutex>

#include "block.h"
#include "templates/matmul.h"
#include "tenon.h"

namespace tenon_onednn {

// A part of one matrix of a product: its box, and where in memory it begins, in elements.
struct Part {
  int64_t box[4];
  int64_t source, weights, result;
  size_t block;
};

// All that a product's code depends on but for addresses; of convolutions also the weights.
struct Key {
  static constexpr size_t kWords = 32;
  int64_t words[kWords] = {};

  explicit Key(const tenon_matmul_t& product);
  bool operator==(const Key& other) const;
  size_t place(size_t places) const;
};

// How a product is done.
struct Prepared {
  explicit Prepared(const Key& of) : key(of) {}

  const Key key;
  const Prepared* next = nullptr;  // in its place of the table
  std::string what;
  std::string why;  // the program's own code does it; empty: oneDNN does
  std::vector<Block> blocks;
  std::vector<Part> parts;
  const void* weights = nullptr;  // as oneDNN wants them; null: where they are
  bool is_direct = false;         // the blocks write where the product is wanted
  mutable std::atomic<uint64_t> runs{0};
};

class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // false: nothing was done.
  bool multiply(const tenon_host_t& host, const tenon_matmul_t& product);
  const char* facts();

 private:
  // Weights in panels that were laid out anew.
  struct Laid {
    const void* of;
    dnnl::memory memory;
  };
  static constexpr size_t kPlaces = 256;
  static constexpr size_t kMost = 1024;  // that are prepared: of more, the program's code does them

  const Prepared* find(const Key& key) const;
  const Prepared* prepare(const Key& key, const tenon_matmul_t& product, int64_t threads);
  std::string prepare_product(Prepared& made, const tenon_matmul_t& p, int64_t threads);
  std::string prepare_convolution(Prepared& made, const tenon_matmul_t& p, int64_t threads);
  const dnnl::memory* laid_out(const tenon_matmul_t& p);
  const dnnl::memory& lay_out(const tenon_matmul_t& p, const dnnl::memory::desc& wanted);

  const int process_;  // another one, forked from it, prepares nothing
  std::atomic<const Prepared*> table_[kPlaces] = {};
  std::mutex mutex_;  // of what is prepared
  std::vector<const Prepared*> all_;
  std::vector<Laid> laid_;
  size_t laid_bytes_ = 0;
  std::string facts_;
};

}  // namespace tenon_onednn
