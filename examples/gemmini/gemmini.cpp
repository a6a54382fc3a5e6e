// The accelerator as a target: memory, a queue, and the host core that runs kernels.
//
// A kernel is a function for the host core, which gives the array its products by the functions of
// `port`, whose address is the number before its own. A launch begins with its scalar operations and
// bytes, by which the core's cycles are counted.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "matmul.h"
#include "sequencer.h"
#include "tenon.h"

namespace {

using namespace gemmini;
using Kernel = void (*)(void* const*, const int64_t*, int64_t*);

constexpr uint64_t kMemory = uint64_t(4) << 30;
constexpr size_t kCosts = 2; // numbers of a launch that are the core's: operations and bytes

Counters counters;
std::mutex lock; // of what follows
std::vector<std::function<void()>> commands;
std::multimap<uint64_t, void*> loaded; // what each kernel's file is open as
std::atomic<uint64_t> done;

int32_t fail(tenon_status* status, tenon_code code, const std::string& text) {
  status->code = code;
  std::snprintf(status->text, sizeof(status->text), "%s", text.c_str());
  return code;
}

// Products.

std::vector<int64_t> progression(int64_t count, int64_t step) {
  std::vector<int64_t> made(count);
  for (int64_t k = 0; k < count; ++k)
    made[k] = k * step;
  return made;
}

// The offsets of positions in several dimensions, the last of which is the innermost.
std::vector<int64_t> positions(const int64_t* sizes, const int64_t* steps, int rank) {
  std::vector<int64_t> made{0};
  for (int d = 0; d < rank; ++d) {
    std::vector<int64_t> next;
    for (int64_t start : made)
      for (int64_t k = 0; k < sizes[d]; ++k)
        next.push_back(start + k * steps[d]);
    made = std::move(next);
  }
  return made;
}

template <typename In, typename Sum>
void multiply(Product<In, Sum> product) {
  counters.products += 1;
  if (product.m == 0 || product.n == 0)
    return;
  if (product.k == 0) {
    for (int64_t i = 0; i < product.m; ++i)
      std::fill_n(product.c + i * product.step, product.n, Sum());
    return;
  }
  Machine<In, Sum> machine;
  product.run(machine);
  machine.count(counters);
  counters.multiplications += product.m * product.n * product.k;
}

// What a generated kernel asks of the array; the core does the rest over the whole product.
void float_product(const tenon_matmul_t* p) {
  std::vector<float> unkept;
  for (int64_t b = 0; b < p->batch; ++b) {
    auto* c = static_cast<float*>(p->c);
    int64_t step = p->c_strides[1];
    if (c == nullptr) {
      unkept.resize(p->m * p->n);
      c = unkept.data();
      step = p->n;
    } else {
      c += b * p->c_strides[0];
    }
    Matrix left{progression(p->m, p->a_strides[1]), progression(p->k, p->a_strides[2])}, right;
    if (const tenon_windows_t* w = p->windows)
      right = {positions(w->rows, w->row_steps, 4), positions(w->columns, w->column_steps, 3)};
    else
      right = {progression(p->k, p->b_strides[1]), progression(p->n, p->b_strides[2])};
    multiply<float, float>(
        {static_cast<const float*>(p->a) + b * p->a_strides[0],
         static_cast<const float*>(p->b) + b * p->b_strides[0], c, std::move(left),
         std::move(right), p->m, p->n, p->k, step});
    if (p->epilogue != nullptr) {
      const int64_t box[] = {0, p->m, 0, p->n, b};
      p->epilogue(c, step, box, p->arguments, p->sizes, p->status);
    }
  }
}

// int32 = int8 x int8, by sizes m, n, k and the strides of both operands.
void int8_product(void* const* a, const int64_t* s, int64_t*) {
  multiply<int8_t, int32_t>(
      {static_cast<const int8_t*>(a[1]), static_cast<const int8_t*>(a[2]),
       static_cast<int32_t*>(a[0]), {progression(s[0], s[3]), progression(s[2], s[4])},
       {progression(s[2], s[5]), progression(s[1], s[6])}, s[0], s[1], s[2], s[1]});
}

void* const port[] = {
    reinterpret_cast<void*>(&float_product), reinterpret_cast<void*>(&int8_product)};

// Memory: the array and the core share it, and a handle is an address of it.

uint64_t total_memory(void*, int32_t) {
  return kMemory;
}

int32_t allocate(void*, int32_t, uint64_t nbytes, uint64_t* handle, tenon_status* status) {
  void* made = nbytes > kMemory ? nullptr : std::aligned_alloc(512, (nbytes + 511) / 512 * 512);
  *handle = reinterpret_cast<uint64_t>(made);
  return made ? TENON_OK : fail(status, TENON_OUT_OF_MEMORY, "the memory has 4 GiB");
}

void release(void*, int32_t, uint64_t handle) {
  std::free(reinterpret_cast<void*>(handle));
}

void* address(const tenon_place& place) {
  return place.handle ? reinterpret_cast<char*>(place.handle) + place.offset : nullptr;
}

std::vector<void*> addresses(const tenon_place* places, size_t count) {
  std::vector<void*> found;
  for (size_t k = 0; k < count; ++k)
    found.push_back(address(places[k]));
  return found;
}

// The queue: nothing runs before it is committed.

int32_t copy(
    void*, int32_t, const tenon_end* to, const tenon_end* from, uint64_t nbytes, tenon_status*) {
  void* dst = to->host ? to->host : address(to->place);
  const void* src = from->host ? from->host : address(from->place);
  commands.push_back([=] { std::memmove(dst, src, nbytes); });
  return TENON_OK;
}

int32_t launch(void*, int32_t, const tenon_launch* asked, tenon_status* status) {
  if (asked->number_count < kCosts)
    return fail(status, TENON_ERROR, "a kernel begins with its operations and bytes");
  std::vector<int64_t> numbers(asked->numbers, asked->numbers + asked->number_count);
  const int64_t cycles = std::max(numbers[0], (numbers[1] + kBus - 1) / kBus);
  numbers[kCosts - 1] = reinterpret_cast<int64_t>(port);
  const auto kernel = reinterpret_cast<Kernel>(asked->kernel);
  auto places = addresses(asked->places, asked->place_count);
  commands.push_back([=, report = asked->status] {
    kernel(places.data(), numbers.data() + kCosts, report);
    counters.host += cycles;
  });
  return TENON_OK;
}

int32_t call(
    void*, int32_t, tenon_work work, void* data, const tenon_place* places, size_t count,
    tenon_status*) {
  commands.push_back([=, found = addresses(places, count)] {
    work(data, found.data());
    counters.calls += 1;
  });
  return TENON_OK;
}

int32_t commit(void*, int32_t, uint64_t* ticket, tenon_status*) {
  *ticket = done + (commands.empty() ? 0 : 1);
  for (const auto& command : commands)
    command();
  commands.clear();
  done = *ticket;
  return TENON_OK;
}

int32_t passed(void*, int32_t, uint64_t ticket) {
  return ticket <= done;
}

int32_t wait(void*, int32_t, uint64_t, tenon_status*) {
  return TENON_OK; // `commit` has done it all
}

// Kernels: functions of shared objects, and the array's own.

int32_t load(
    void*, const void* code, uint64_t nbytes, const char* entry, uint64_t* kernel,
    tenon_status* status) {
  if (nbytes == 0) {
    if (std::strcmp(entry, "int8_product") != 0)
      return fail(status, TENON_UNSUPPORTED, "the array's own kernel is int8_product");
    *kernel = reinterpret_cast<uint64_t>(&int8_product);
    return TENON_OK;
  }
  char path[] = "/tmp/gemmini-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0)
    return fail(status, TENON_ERROR, "no file for a kernel in /tmp");
  const bool written = write(file, code, nbytes) == ssize_t(nbytes);
  close(file);
  void* opened = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (opened == nullptr)
    return fail(status, TENON_DAMAGED, written ? dlerror() : "no room for a kernel in /tmp");
  *kernel = reinterpret_cast<uint64_t>(dlsym(opened, entry));
  if (*kernel == 0) {
    dlclose(opened);
    return fail(status, TENON_DAMAGED, std::string("no function ") + entry);
  }
  const std::lock_guard guard(lock);
  loaded.emplace(*kernel, opened);
  return TENON_OK;
}

void unload(void*, uint64_t kernel) {
  const std::lock_guard guard(lock);
  if (const auto found = loaded.find(kernel); found != loaded.end()) {
    dlclose(found->second);
    loaded.erase(found);
  }
}

}  // namespace

extern "C" TENON_EXPORT void gemmini_counters(Counters* found, int reset) {
  *found = counters;
  if (reset)
    counters = {};
}

extern "C" TENON_EXPORT const tenon_target_functions* tenon_target(
    uint32_t interface, tenon_status* status) {
  static const tenon_target_functions functions = [] {
    tenon_target_functions f{};
    f.size = sizeof(f);
    f.name = "gemmini";
    f.facts = "Array: 16 x 16, simulated, with cycles\nScratchpad: 256 KiB\nAccumulator: 64 KiB";
    f.devices = 1;
    f.total_memory = total_memory;
    f.allocate = allocate;
    f.release = release;
    f.copy = copy;
    f.commit = commit;
    f.passed = passed;
    f.wait = wait;
    f.launch = launch;
    f.load = load;
    f.unload = unload;
    f.call = call;
    return f;
  }();
  if (interface == TENON_INTERFACE)
    return &functions;
  fail(status, TENON_UNSUPPORTED, "the simulator was compiled for another interface");
  return nullptr;
}
