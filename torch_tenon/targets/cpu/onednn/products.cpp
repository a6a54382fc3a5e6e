#include "products.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tenon_onednn {
namespace {

using dnnl::memory;

// What pays, as measured (docs/export.md). Other products take as long by the program's code, which
// has its weights in the file, and starts sooner.
constexpr int64_t kLeast = 1 << 16;  // multiplications
constexpr int64_t kFewRows = 2;      // the weights' memory is what takes the time
constexpr int64_t kChannels = 8;     // of an image, at most
constexpr int64_t kRun = 32;         // numbers of the image that a row of the kernel meets, at most

constexpr int64_t kRows = 64;        // of a part: fewer cost more for each
constexpr int64_t kColumns = 64;     // a part has a multiple of so many, but for the last
constexpr int64_t kPiece = 1 << 18;  // bytes that an epilogue finds in the cache

int64_t ceil_of(int64_t n, int64_t parts) {
  return (n + parts - 1) / parts;
}

int64_t multiple_of(int64_t n, int64_t unit) {
  return ceil_of(n, unit) * unit;
}

int64_t item_size(const tenon_matmul_t& p) {
  return p.dtype == 0 ? 4 : 2;
}

bool writes_result(const tenon_matmul_t& p) {
  return p.c != nullptr && (p.kept || p.epilogue == nullptr);
}

// Whether memory of rows and columns has one of them dense and the other no nearer than that.
bool is_matrix(int64_t rows, int64_t columns, int64_t down, int64_t across) {
  return (across == 1 && (rows == 1 || down >= columns)) ||
         (down == 1 && (columns == 1 || across >= rows));
}

std::string times(int64_t a, int64_t b) {
  return std::to_string(a) + "x" + std::to_string(b);
}

std::string described(const tenon_matmul_t& p) {
  const char* const dtypes[] = {"float32", "bfloat16", "float16"};
  std::string text = p.batch > 1 ? std::to_string(p.batch) + " x " : "";
  text += dtypes[p.dtype >= 0 && p.dtype <= 2 ? p.dtype : 0];
  if (const auto* w = p.places) {
    text += " convolution of " + std::to_string(w->channels) + " channels " +
            times(w->size[0], w->size[1]) + " to " + std::to_string(p.n) + " channels " +
            times(w->places[0], w->places[1]) + ", kernel " + times(w->kernel[0], w->kernel[1]);
  } else {
    text += (p.windows != nullptr ? " windows " : " product ") + times(p.m, p.k) + " by " +
            times(p.k, p.n);
  }
  return text;
}

// The block that `make` gives for the first part of its kind; the number of blocks: there is none.
template <class Known, class Of, class Make>
size_t block_of(Known& known, std::vector<Block>& blocks, const Of& of, const Make& make) {
  const auto found = std::find(known.begin(), known.end(), of);
  if (found != known.end())
    return static_cast<size_t>(found - known.begin());
  auto made = make();
  if (made) {
    known.push_back(of);
    blocks.push_back(std::move(*made));
    return blocks.size() - 1;
  }
  return blocks.size();
}

// One that the threads share out.
struct Job {
  const Prepared& made;
  const tenon_matmul_t& p;
  std::atomic<int64_t> next{0};

  void part(int64_t number) const {
    const auto count = static_cast<int64_t>(made.parts.size());
    const auto matrix = number / count;
    const auto& part = made.parts[static_cast<size_t>(number % count)];
    const auto item = item_size(p);
    const auto* source =
        static_cast<const char*>(p.a) + (matrix * p.a_strides[0] + part.source) * item;
    const auto* weights =
        made.weights != nullptr
            ? static_cast<const char*>(made.weights)
            : static_cast<const char*>(p.b) + (matrix * p.b_strides[0] + part.weights) * item;
    auto* const wanted = static_cast<char*>(p.c) + (matrix * p.c_strides[0] + part.result) * item;
    const auto& [top, bottom, left, right] = part.box;
    const auto width = (right - left) * item;
    void* const piece =
        made.is_direct ? wanted : room(0, static_cast<size_t>((bottom - top) * width));
    made.blocks[part.block].run(source, weights, piece);
    if (!made.is_direct && writes_result(p)) {
      for (int64_t i = 0; i < bottom - top; ++i)
        std::memcpy(
            wanted + i * p.c_strides[1] * item,
            static_cast<const char*>(piece) + i * width,
            static_cast<size_t>(width));
    }
    if (p.epilogue != nullptr) {
      const int64_t box[] = {top, bottom, left, right, matrix};
      p.epilogue(
          piece,
          made.is_direct ? p.c_strides[1] : right - left,
          box,
          p.arguments,
          p.sizes,
          p.status);
    }
  }
  void share() {
    const OneThread one;
    const auto count = p.batch * static_cast<int64_t>(made.parts.size());
    for (int64_t k; (k = next++) < count;)
      part(k);
  }
};

}  // namespace

Key::Key(const tenon_matmul_t& p) {
  size_t at = 0;
  const auto add = [&](const auto&... numbers) { ((words[at++] = numbers), ...); };
  add(p.dtype, p.batch, p.m, p.n, p.k, p.panels);
  add(p.a_strides[0], p.a_strides[1], p.a_strides[2]);
  add(p.b_strides[0], p.b_strides[1], p.b_strides[2], p.c_strides[0], p.c_strides[1]);
  add((writes_result(p) ? 1 : 0) | (p.epilogue != nullptr ? 2 : 0) |
      (p.windows != nullptr ? 4 : 0) | (p.places != nullptr ? 8 : 0));
  if (p.places == nullptr)
    return;
  const auto& w = *p.places;
  for (const auto* pair : {w.size, w.step, w.places, w.kernel, w.stride, w.padding, w.dilation})
    add(pair[0], pair[1]);
  add(w.channels, static_cast<int64_t>(reinterpret_cast<intptr_t>(p.b)));
}

bool Key::operator==(const Key& other) const {
  return std::memcmp(words, other.words, sizeof(words)) == 0;
}

size_t Key::place(size_t places) const {
  uint64_t sum = 0;
  for (const auto word : words)
    sum = (sum ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(sum >> 32) % places;
}

Products::Products() : process_(getpid()) {}

Products::~Products() {
  for (const auto* made : all_)
    delete made;
}

bool Products::multiply(const tenon_host_t& host, const tenon_matmul_t& product) {
  Key key(product);
  const auto threads = tenon_matmul_is_small(&product) ? 1 : std::max(host.most_threads(), 1);
  key.words[Key::kWords - 1] = threads;
  const auto* made = find(key);
  if (made == nullptr)
    made = prepare(key, product, threads);
  if (made == nullptr)
    return false;
  ++made->runs;
  if (!made->why.empty())
    return false;
  Job job{*made, product};
  const auto parts = product.batch * static_cast<int64_t>(made->parts.size());
  if (threads == 1 || parts == 1)
    job.share();
  else
    host.parallel(
        [](void* data) { static_cast<Job*>(data)->share(); },
        &job,
        static_cast<unsigned>(std::min<int64_t>(parts, threads)));
  return true;
}

const Prepared* Products::find(const Key& key) const {
  const auto* made = table_[key.place(kPlaces)].load(std::memory_order_acquire);
  while (made != nullptr && !(made->key == key))
    made = made->next;
  return made;
}

const Prepared* Products::prepare(const Key& key, const tenon_matmul_t& p, int64_t threads) {
  if (getpid() != process_)
    return nullptr;
  const std::lock_guard lock(mutex_);
  if (const auto* made = find(key))
    return made;
  if (all_.size() >= kMost)
    return nullptr;
  auto made = std::make_unique<Prepared>(key);
  made->what = described(p);
  if (p.batch * p.m * p.n * p.k < kLeast)
    made->why = "small";
  else if (p.windows != nullptr)
    made->why = "windows of an image that lies by rows";
  else if (p.places != nullptr)
    made->why = prepare_convolution(*made, p, threads);
  else
    made->why = prepare_product(*made, p, threads);
  if (!made->why.empty()) {
    made->blocks.clear();
    made->parts.clear();
  }
  auto& place = table_[key.place(kPlaces)];
  made->next = place.load(std::memory_order_relaxed);
  all_.push_back(made.get());
  place.store(made.get(), std::memory_order_release);
  return made.release();
}

// Gives the reason where the program's own code does it.
std::string Products::prepare_product(Prepared& made, const tenon_matmul_t& p, int64_t threads) {
  if (p.dtype != 1)
    return p.dtype == 0 ? "float32" : "float16";
  if (p.m <= kFewRows)
    return "few rows";
  if (!has_bfloat16())
    return "the processor does not multiply numbers of bfloat16";
  if (!is_matrix(p.m, p.k, p.a_strides[1], p.a_strides[2]) ||
      !is_matrix(p.k, p.n, p.b_strides[1], p.b_strides[2]))
    return "operands that are not dense in rows or columns";
  int64_t high = p.m, wide = p.n;
  if (threads > 1 && p.batch < 2 * threads) {
    const auto wanted = ceil_of(2 * threads, p.batch);
    if (p.m >= kRows * threads)
      high = std::max(kRows, multiple_of(ceil_of(p.m, wanted), 16));
    else
      wide = multiple_of(ceil_of(p.n, ceil_of(threads, p.batch)), kColumns);
  }
  if (p.epilogue != nullptr && high > kRows)
    high = std::clamp(kPiece / (wide * item_size(p)), kRows, high);
  made.is_direct = writes_result(p) && wide >= p.n;
  std::vector<std::pair<int64_t, int64_t>> known;
  for (int64_t r = 0; r < p.m; r += high) {
    for (int64_t c = 0; c < p.n; c += wide) {
      const auto bottom = std::min(r + high, p.m), right = std::min(c + wide, p.n);
      const auto block = block_of(known, made.blocks, std::pair(bottom - r, right - c), [&] {
        return Block::product(
            {memory::data_type::bf16,
             bottom - r,
             right - c,
             p.k,
             {p.a_strides[1], p.a_strides[2]},
             {p.b_strides[1], p.b_strides[2]},
             made.is_direct ? p.c_strides[1] : right - c});
      });
      if (block == made.blocks.size())
        return "oneDNN has no code for it";
      made.parts.push_back(
          {{r, bottom, c, right},
           r * p.a_strides[1],
           c * p.b_strides[2],
           r * p.c_strides[1] + c,
           block});
    }
  }
  return "";
}

std::string Products::prepare_convolution(
    Prepared& made, const tenon_matmul_t& p, int64_t threads) {
  const auto& w = *p.places;
  if (w.kernel[0] * w.kernel[1] == 1)
    return "a kernel of one element";
  if (w.channels > kChannels || w.channels * w.kernel[1] > kRun)
    return "many channels";
  if (threads > 1 && p.batch * w.places[0] < threads)
    return "fewer rows of places than threads";
  const auto line = w.places[1] * p.n * item_size(p);  // bytes of a row of places
  int64_t high = threads > 1 ? ceil_of(w.places[0], ceil_of(2 * threads, p.batch)) : w.places[0];
  if (p.epilogue != nullptr)
    high = std::clamp<int64_t>(kPiece / line, 1, high);
  made.is_direct = writes_result(p) && p.c_strides[1] == p.n;
  const auto* laid = laid_out(p);
  std::optional<memory::desc> wanted;  // for all parts, as the first one wants them
  if (laid != nullptr)
    wanted = laid->get_desc();
  std::vector<std::vector<int64_t>> known;
  const auto zeros_after = [&](int d, int64_t last) {
    const auto end = last * w.stride[d] - w.padding[d] + (w.kernel[d] - 1) * w.dilation[d] + 1;
    return std::max<int64_t>(0, end - w.size[d]);
  };
  for (int64_t r = 0; r < w.places[0]; r += high) {
    const auto end = std::min(r + high, w.places[0]);
    const auto top = r * w.stride[0] - w.padding[0];
    const auto bottom =
        (end - 1) * w.stride[0] - w.padding[0] + (w.kernel[0] - 1) * w.dilation[0] + 1;
    const auto first = std::max<int64_t>(top, 0), last = std::min(bottom, w.size[0]);
    if (first >= last)
      return "places that are beyond the image";
    const auto after = zeros_after(0, end - 1);
    const std::vector<int64_t> kind{end - r, first - top, last - first, after};
    const auto block = block_of(known, made.blocks, kind, [&] {
      return Block::convolution(
          {w.channels,
           p.n,
           {last - first, w.size[1]},
           {w.step[0], w.step[1]},
           {end - r, w.places[1]},
           {w.kernel[0], w.kernel[1]},
           {w.stride[0], w.stride[1]},
           {w.dilation[0], w.dilation[1]},
           {first - top, w.padding[1]},
           {after, zeros_after(1, w.places[1] - 1)}},
          wanted ? &*wanted : nullptr);
    });
    if (block == made.blocks.size())
      return "oneDNN has no code for it as the weights lie";
    wanted = made.blocks[0].weights();
    const auto begin = r * w.places[1];
    made.parts.push_back(
        {{begin, end * w.places[1], 0, p.n}, first * w.step[0], 0, begin * p.c_strides[1], block});
  }
  if (laid == nullptr)
    laid = &lay_out(p, made.blocks[0].weights());
  made.weights = laid->get_data_handle();
  return "";
}

const memory* Products::laid_out(const tenon_matmul_t& p) {
  for (const auto& laid : laid_) {
    if (laid.of == p.b)
      return &laid.memory;
  }
  return nullptr;
}

const memory& Products::lay_out(const tenon_matmul_t& p, const memory::desc& wanted) {
  const auto& w = *p.places;
  const OneThread one;
  const memory::desc plain(
      {p.n, w.channels, w.kernel[0], w.kernel[1]},
      memory::data_type::f32,
      memory::format_tag::acdb);
  std::vector<float> rows(static_cast<size_t>(p.n * p.k));
  const auto* panels = static_cast<const float*>(p.b);
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t k = 0; k < p.k; ++k)
      rows[static_cast<size_t>(j * p.k + k)] =
          panels[(j / TENON_PANEL * p.k + k) * TENON_PANEL + j % TENON_PANEL];
  }
  memory from(plain, engine(), rows.data()), to(wanted, engine());
  dnnl::stream stream(engine());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  laid_.push_back({p.b, to});
  laid_bytes_ += wanted.get_size();
  return laid_.back().memory;
}

const char* Products::facts() {
  const std::lock_guard lock(mutex_);
  const auto& version = *dnnl_version();
  const auto quoted = [](const char* name, const std::string& text) {
    return std::string("\"") + name + "\": \"" + text + "\"";
  };
  facts_ = "{" +
           quoted(
               "library",
               "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) +
                   "." + std::to_string(version.patch)) +
           ", \"laid_out\": " + std::to_string(laid_bytes_) + ", \"products\": [";
  for (const auto* made : all_) {
    if (made != all_.front())
      facts_ += ", ";
    const bool is_own = !made->why.empty();
    facts_ += "{" + quoted("what", made->what) + ", " +
              quoted("by", is_own ? "own code" : made->blocks[0].name()) + ", " +
              quoted("why", made->why) + ", \"runs\": " + std::to_string(made->runs) + "}";
  }
  facts_ += "]}";
  return facts_.c_str();
}

}  // namespace tenon_onednn
