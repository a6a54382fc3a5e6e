// Several queues of a device as one: whatever their threads do when, results are those of one.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "check.h"
#include "runtime/several_queues.h"
#include "runtime/touched_memory.h"

using namespace tenon;

namespace {

class Point final : public Commit {
 public:
  bool passed() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return passed_;
  }
  void wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    change_.wait(lock, [&] { return passed_; });
  }
  double seconds() override {
    return ended;
  }
  std::optional<double> started() override {
    return begun;
  }
  std::shared_ptr<Failure> failure() override {
    return failed ? Failure::of(Error(ErrorKind::error, "it lost its power")) : nullptr;
  }
  void pass() {
    const std::lock_guard<std::mutex> lock(mutex_);
    passed_ = true;
    change_.notify_all();
  }

  double begun = 0, ended = 0;
  bool failed = false;

 private:
  std::mutex mutex_;
  std::condition_variable change_;
  bool passed_ = false;
};

// A queue on a thread, which pauses as it likes.
class Worker final : public Queue {
 public:
  explicit Worker(unsigned seed, int longest_pause = 0, bool orders = true)
      : random_(seed),
        longest_pause_(longest_pause),
        orders_(orders),
        thread_([this] { work(); }) {}
  ~Worker() override {
    enqueue({});
    commit();
    thread_.join();
  }

  void copy(void* dst, const void* src, size_t nbytes, CopyKind) override {
    ++copies;
    enqueue([=] { std::memmove(dst, src, nbytes); });
  }
  void launch(const Launch& launch) override {
    enqueue([kernel = launch.kernel,
             pointers = std::vector(launch.pointers.begin(), launch.pointers.end()),
             numbers = std::vector(launch.numbers.begin(), launch.numbers.end())] {
      kernel(pointers.data(), numbers.data(), nullptr);
    });
  }
  bool runs_calls() const override {
    return true;
  }
  void call(Work work, std::span<void* const> pointers, std::span<const size_t>) override {
    enqueue([work = std::move(work), all = std::vector(pointers.begin(), pointers.end())] {
      work(all);
    });
  }
  void record(RecordedLaunches& made, const std::function<bool()>& launches) override {
    if (refuses)
      fail(ErrorKind::error, "it records nothing now");
    auto before = std::exchange(open_, {});
    CHECK(launches());
    recorded_.push_back(std::exchange(open_, std::move(before)));
    made.number = recorded_.size();
  }
  void replay(const RecordedLaunches& recording) override {
    for (const auto& command : recorded_.at(recording.number - 1))
      enqueue(command);
  }
  void after(const Ticket& ticket) override {
    if (orders_)
      enqueue([ticket] { ticket->wait(); });
  }

  int copies = 0;
  bool fails = false;    // the next commit
  bool refuses = false;  // to record

 private:
  using Command = std::function<void()>;

  Ticket start() override {
    const auto point = std::make_shared<Point>();
    point->failed = std::exchange(fails, false);
    point->begun = ++clock_;
    point->ended = ++clock_;
    open_.push_back([point] { point->pass(); });
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& command : open_)
      committed_.push_back(std::move(command));
    open_.clear();
    change_.notify_all();
    return point;
  }
  void enqueue(Command command) {
    open_.push_back(std::move(command));
  }
  void work() {
    for (;;) {
      Command next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        change_.wait(lock, [&] { return !committed_.empty(); });
        next = std::move(committed_.front());
        committed_.pop_front();
      }
      if (!next)
        return;
      if (longest_pause_ > 0 && random_() % 2 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % longest_pause_));
      next();
    }
  }

  std::mt19937 random_;
  const int longest_pause_;
  const bool orders_;
  double clock_ = 0;
  std::vector<Command> open_;
  std::vector<std::vector<Command>> recorded_;
  std::mutex mutex_;
  std::condition_variable change_;
  std::deque<Command> committed_;
  std::thread thread_;
};

// A device with so many queues for copies.
struct SeveralQueues {
  explicit SeveralQueues(size_t copy_queues, unsigned seed = 0, int pause = 0, bool orders = true) {
    // Now the kernels are slow, now the copies.
    const auto slow = [&](bool kernels) { return kernels == (seed % 2 == 0) ? pause : pause / 8; };
    auto made = std::make_unique<Worker>(seed, slow(true), orders);
    kernels = made.get();
    std::vector<std::unique_ptr<Queue>> others;
    for (size_t k = 0; k < copy_queues; ++k) {
      auto other = std::make_unique<Worker>(seed + 1 + k, slow(false), orders);
      copies.push_back(other.get());
      others.push_back(std::move(other));
    }
    queue = several_queues(std::move(made), std::move(others));
  }

  Worker* kernels;
  std::vector<Worker*> copies;
  std::unique_ptr<Queue> queue;
};

constexpr size_t kWords = 1 << 16;      // of the device, and of the host
constexpr size_t kMostWords = 1 << 15;  // that one thing touches: copies of either kind

using Numbers = std::vector<uint32_t>;

Numbers numbered(size_t words, uint32_t first) {
  Numbers made(words);
  std::iota(made.begin(), made.end(), first);
  return made;
}

// Changes what one pointer leads to by what the other does.
void mix(void* const* pointers, const int64_t* numbers, int64_t*) {
  auto* to = static_cast<uint32_t*>(pointers[0]);
  const auto* from = static_cast<const uint32_t*>(pointers[1]);
  for (int64_t k = 0; k < numbers[0]; ++k)
    to[k] = to[k] * 31 + from[k % numbers[1]];
}

// The same random program on any queue and memory: what the seed says.
void run_program(Queue& queue, Numbers& device, Numbers& host, unsigned seed) {
  std::mt19937 random(seed);
  const auto stretch = [&] {
    const size_t most = random() % 2 == 0 ? kMostWords : 64;
    const auto words = 1 + random() % most;
    return std::pair{random() % (kWords - words), words};
  };
  std::vector<Ticket> tickets;
  for (int step = 0; step < 80; ++step) {
    const auto [first, words] = stretch();
    const auto other = random() % (kWords - words);
    const auto nbytes = words * sizeof(uint32_t);
    switch (random() % 9) {
      case 0:
      case 1:
        queue.copy(&device[first], &host[other], nbytes, CopyKind::host_to_device);
        break;
      case 2:
      case 3:
        queue.copy(&host[other], &device[first], nbytes, CopyKind::device_to_host);
        break;
      case 4:
        queue.copy(&device[other], &device[first], nbytes, CopyKind::device_to_device);
        break;
      case 5: {
        const auto [from, count] = stretch();
        void* const pointers[] = {&device[first], &device[from], nullptr};
        const size_t touched[] = {nbytes, count * sizeof(uint32_t), 0};
        const int64_t numbers[] = {static_cast<int64_t>(words), static_cast<int64_t>(count)};
        queue.launch({.kernel = mix, .pointers = pointers, .nbytes = touched, .numbers = numbers});
        break;
      }
      case 6: {
        void* const pointers[] = {&device[first]};
        const auto add = [count = words](std::span<void* const> memory) {
          for (size_t k = 0; k < count; ++k)
            static_cast<uint32_t*>(memory[0])[k] += 7;
        };
        queue.call(add, pointers, std::array{nbytes});
        break;
      }
      case 7: {
        const auto [from, count] = stretch();
        void* const pointers[] = {&device[first], &device[from]};
        const size_t touched[] = {nbytes, count * sizeof(uint32_t)};
        const int64_t numbers[] = {static_cast<int64_t>(words), static_cast<int64_t>(count)};
        const auto launches = [&] {
          for (int k = 0; k < 2; ++k)
            queue.launch(
                {.kernel = mix, .pointers = pointers, .nbytes = touched, .numbers = numbers});
          return true;
        };
        RecordedLaunches recording;
        queue.record(recording, launches);
        for (int k = 0; k < 2; ++k) {
          queue.copy(&device[from], &host[other], 4, CopyKind::host_to_device);
          recording.is_there() ? queue.replay(recording) : void(launches());
          tickets.push_back(queue.commit());
          if (k == 0 && tickets.back() != nullptr)
            tickets.back()->wait();
        }
        recording.number = 0;  // it is the queue's
        break;
      }
      default:
        tickets.push_back(queue.commit());
        if (random() % 4 == 0 && tickets.back() != nullptr)
          tickets[random() % tickets.size()]->wait();
    }
  }
  if (const auto ticket = queue.commit())
    ticket->wait();
}

// Whether all the programs leave what they leave on one queue.
bool programs_are_right(size_t copy_queues, bool orders) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    auto device = numbered(kWords, seed), host = numbered(kWords, ~seed);
    auto expected_device = device, expected_host = host;
    run_program(*host_queue(), expected_device, expected_host, seed);
    SeveralQueues there(copy_queues, seed, /*pause=*/400, orders);
    run_program(*there.queue, device, host, seed);
    if (device != expected_device || host != expected_host)
      return false;
  }
  return true;
}

// A kernel that runs until it is told.
struct Gate {
  std::mutex mutex;
  std::condition_variable change;
  bool is_open = false;

  static void wait(void* const* pointers, const int64_t* numbers, int64_t*) {
    auto& gate = *reinterpret_cast<Gate*>(numbers[0]);
    std::unique_lock<std::mutex> lock(gate.mutex);
    gate.change.wait(lock, [&] { return gate.is_open; });
    *static_cast<uint32_t*>(pointers[0]) += 1;
  }
  void launch(Queue& queue, uint32_t* touched, size_t words) {
    void* const pointers[] = {touched};
    const size_t nbytes[] = {words * sizeof(uint32_t)};
    const int64_t numbers[] = {reinterpret_cast<int64_t>(this)};
    queue.launch({.kernel = wait, .pointers = pointers, .nbytes = nbytes, .numbers = numbers});
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_open = true;
    change.notify_all();
  }
};

}  // namespace

TEST(touched_memory_is_found_where_it_overlaps) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<bool> touched(100);
    const char memory[100] = {};
    TouchedMemory all;
    for (int k = 0; k < 12; ++k) {
      const auto first = random() % 90, nbytes = random() % 10;
      all.add(memory + first, nbytes);
      for (size_t byte = first; byte < first + nbytes; ++byte)
        touched[byte] = true;
      const auto asked = random() % 90, count = random() % 10;
      bool overlaps = false;
      for (size_t byte = asked; byte < asked + count; ++byte)
        overlaps = overlaps || touched[byte];
      CHECK(all.overlaps(memory + asked, count) == overlaps);
    }
    all.add(nullptr, 10);
    CHECK(!all.overlaps(nullptr, 10));
  }
}

TEST(programs_on_several_queues_are_those_of_one) {
  CHECK(programs_are_right(/*copy_queues=*/1, /*orders=*/true));
  CHECK(programs_are_right(/*copy_queues=*/2, /*orders=*/true));
}

TEST(programs_on_queues_without_order_are_wrong) {
  CHECK(!programs_are_right(/*copy_queues=*/1, /*orders=*/false));
}

TEST(copies_run_beside_a_kernel_unless_they_touch_the_same) {
  constexpr size_t kLarge = kLeastBytesApart / sizeof(uint32_t);
  auto device = numbered(4 * kLarge, 0), host = numbered(4 * kLarge, 9);
  SeveralQueues there(1);
  auto& queue = *there.queue;
  const auto send = [&](size_t to, size_t words) {
    queue.copy(&device[to], &host[0], words * 4, CopyKind::host_to_device);
    return queue.commit();
  };
  Gate gate;
  gate.launch(queue, &device[0], kLarge);
  const auto kernel = queue.commit();
  // Beside it: a large one, and a small one back.
  const auto beside = send(kLarge, kLarge);
  beside->own()->wait();
  CHECK(!beside->passed() && !kernel->passed());
  CHECK(std::memcmp(&device[kLarge], &host[0], kLarge * 4) == 0);
  uint32_t found = 0;
  queue.copy(&found, &device[kLarge + 3], 4, CopyKind::device_to_host);
  queue.commit()->own()->wait();
  CHECK(found == host[3] && there.copies[0]->copies == 2);
  // What the kernel touches is written after it, and nobody waits here.
  const auto behind = send(kLarge - 1, kLarge);
  CHECK(!behind->own()->passed());
  const auto after_that = send(3 * kLarge, kLarge);
  CHECK(!after_that->own()->passed());
  gate.open();
  after_that->wait();
  CHECK(kernel->passed() && behind->passed() && device[0] == 1);
  CHECK(device[kLarge - 1] == host[0]);
  // A small one to the device is not worth an event.
  send(0, 5)->wait();
  CHECK(there.kernels->copies == 1 && there.copies[0]->copies == 4);
}

TEST(a_commit_tells_what_failed_in_it) {
  constexpr size_t kLarge = kLeastBytesApart / sizeof(uint32_t);
  auto device = numbered(2 * kLarge, 0), host = numbered(kLarge, 0);
  SeveralQueues there(1);
  auto& queue = *there.queue;
  const auto send = [&] {
    queue.copy(device.data(), host.data(), kLarge * 4, CopyKind::host_to_device);
  };
  const auto add = [&] {
    void* const pointers[] = {&device[kLarge]};
    queue.call([](auto) {}, pointers, std::array{size_t{4}});
  };
  const auto fails = [&] {
    const auto ticket = queue.commit();
    ticket->wait();
    return ticket->failure() != nullptr;
  };
  for (int turn = 0; turn < 3; ++turn) {
    send(), add();
    CHECK(!fails());
    there.copies[0]->fails = true;
    send(), add();
    CHECK(fails());
    add();
    CHECK(!fails());
    there.kernels->fails = true;
    send(), add();
    CHECK(fails());
    send();
    CHECK(!fails());
  }
  CHECK(!fails());
}

TEST(a_commit_of_several_queues_has_the_times_of_all) {
  constexpr size_t kLarge = kLeastBytesApart / sizeof(uint32_t);
  auto device = numbered(kLarge, 0), host = numbered(kLarge, 0);
  SeveralQueues there(1);
  auto& queue = *there.queue;
  Gate open;
  open.open();
  for (int turn = 0; turn < 3; ++turn) {  // the kernels' clock goes ahead
    open.launch(queue, device.data(), 1);
    queue.commit()->wait();
  }
  queue.copy(device.data(), host.data(), kLarge * 4, CopyKind::host_to_device);
  const auto ticket = queue.commit();
  ticket->wait();
  CHECK(ticket->seconds() == 6 && ticket->own()->seconds() == 2);
  CHECK(ticket->started() == 1.0);
}

TEST(a_recording_that_raises_leaves_the_queue_as_it_was) {
  constexpr size_t kLarge = kLeastBytesApart / sizeof(uint32_t);
  auto device = numbered(kLarge, 0), host = numbered(kLarge, 9);
  SeveralQueues there(1);
  auto& queue = *there.queue;
  RecordedLaunches recording;
  there.kernels->refuses = true;
  CHECK_RAISES("it records nothing now", queue.record(recording, [] { return true; }));
  // What comes now is no part of it: a copy is behind the kernel that writes the same.
  Gate gate;
  gate.launch(queue, device.data(), 1);
  queue.commit();
  queue.copy(device.data(), host.data(), kLarge * 4, CopyKind::host_to_device);
  const auto copy = queue.commit();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(device[0] == 0);
  gate.open();
  copy->wait();
  CHECK(device[0] == host[0]);
}

TEST(work_that_does_not_say_what_it_touches_is_refused) {
  SeveralQueues there(1);
  uint32_t word = 0;
  void* const pointers[] = {&word};
  CHECK_RAISES(
      "has to say what it touches", there.queue->launch({.kernel = mix, .pointers = pointers}));
  CHECK_RAISES("waits for no other one", host_queue()->after(nullptr));
}
