#include "windows/builder.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "device/fork.h"
#include "record/values.h"
#include "windows/builder_process.h"
#include "windows/plan_file.h"
#include "windows/window_plans.h"

namespace tenon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostStarts = 4;
// How long a new one is taken to load the compiler, at most, unless it says that it is ready.
constexpr auto kLoading = std::chrono::milliseconds(1500);
constexpr int kMostLost = 4;  // connections that ended without an answer
constexpr auto kTryAgain = std::chrono::milliseconds(20);
constexpr auto kStarting = std::chrono::seconds(20);  // after which it is taken for dead
constexpr int kWaitMilliseconds = 50;
constexpr auto kListen = std::chrono::milliseconds(10);  // between two looks for answers
constexpr size_t kMostRequest = size_t{64} << 20;        // bytes: the builder hangs up on more
constexpr size_t kMostReceived = size_t{1} << 16;        // bytes at once

// Until the builder has told, and what it may tell.
constexpr double kSecondsPerCall = 0.01;
constexpr double kLeastPerCall = 1e-5, kMostPerCall = 10;
constexpr size_t kCallsOfPlan = 4;  // that take as long as what each plan takes beside its calls

// What goes to the builder is a header and the window's structure. Of a window that it was asked
// for already, a header alone goes. So is what comes back.
struct Header {
  uint32_t number;  // of the request
  uint32_t size;    // of what follows; of an answer: what came of it
  double seconds;   // that runs by reference have taken; of an answer: of planning a call
};
enum Answer : uint32_t { kNothing, kKept, kFailedForNow };  // as builder/answer.py has them
constexpr uint32_t kAlive = 0xFFFFFFFE;  // the number of an answer that says: it still works

using Answers = std::vector<std::pair<std::shared_ptr<WindowPlan>, uint32_t>>;

struct Connection {
  MutexAtFork<ForkOrder::builder> mutex;
  std::string socket;
  std::vector<std::string> command;
  Clock::duration patience{};
  pid_t owner = -1;  // the process that it is of: a child has none of it
  int fd = -1;
  int standby = -1;  // the socket of a process that becomes the builder
  int starts = 0;
  int lost = 0;       // connections since the last answer
  bool gone = false;  // nobody is asked any more
  Clock::time_point started, tried;
  Clock::time_point heard;  // a sign of life, while it owes something
  std::string out, in;
  std::map<uint32_t, std::shared_ptr<WindowPlan>> asked;  // by number of the request
  uint32_t last_request = 0;
  std::atomic<bool> works{false};  // any is asked
  std::atomic<Clock::time_point> listened{Clock::time_point{}};
  std::atomic<double> seconds_per_call{kSecondsPerCall};
  std::atomic<bool> loads{false};  // it is new, and has not said yet that it is ready
};

Connection& connection() {
  return OnlyOne<Connection>::get();
}

void disconnect(Connection& c) {
  if (c.fd >= 0)
    close(c.fd);
  c.fd = -1;
  c.loads = false;
  c.out.clear();
  c.in.clear();
}

// Windows whose answer will not come may ask again, or somebody else.
void give_up(Connection& c, Answers& answers) {
  disconnect(c);
  for (auto& [number, window] : c.asked)
    answers.emplace_back(std::move(window), kNothing);
  c.asked.clear();
}

// The builder ended, was killed, or is none. The next one is started when it is asked for
// something.
void lose(Connection& c, Answers& answers) {
  c.gone = ++c.lost >= kMostLost;
  c.started = {};
  give_up(c, answers);
}

bool start(Connection& c) {
  if (c.starts >= kMostStarts)
    return false;
  ++c.starts;
  c.started = c.heard = Clock::now();
  c.loads = true;
  const auto log = c.socket + ".log";
  if (const int standby = std::exchange(c.standby, -1); standby >= 0) {
    const bool is_awake = wake_builder_process(standby, c.socket, log);
    close(standby);
    if (is_awake)
      return true;
  }
  return start_builder_process(c.command, log);
}

// False where nobody will ever be reached.
bool reach(Connection& c) {
  const auto now = Clock::now();
  if (now - c.tried < kTryAgain)
    return true;
  c.tried = now;
  const auto found = reach_builder(c.socket);
  c.fd = found.fd;
  if (found.who == Reached::builder)
    c.heard = now;
  if (found.who == Reached::stranger)
    return false;
  const bool waits = c.starts > 0 && now - c.started <= kStarting;
  return found.who != Reached::nobody || waits || start(c);
}

void send_requests(Connection& c, Answers& answers) {
  while (!c.out.empty()) {
    const auto sent = send(c.fd, c.out.data(), c.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR)
        lose(c, answers);
      return;
    }
    c.out.erase(0, static_cast<size_t>(sent));
  }
}

// False for what no builder says.
bool take_answer(Connection& c, const Header& header, Answers& answers) {
  if (header.number == kAlive) {
    c.loads = false;
    return true;
  }
  const auto found = c.asked.find(header.number);
  if (found == c.asked.end() || header.size > kFailedForNow)
    return false;
  if (std::isfinite(header.seconds) && header.seconds > 0)
    c.seconds_per_call = std::clamp(header.seconds, kLeastPerCall, kMostPerCall);
  if (header.size == kNothing)
    found->second->refused = true;
  answers.emplace_back(std::move(found->second), header.size);
  c.asked.erase(found);
  c.lost = 0;
  return true;
}

void receive_answers(Connection& c, Answers& answers) {
  bool ended = false;
  while (c.in.size() < kMostReceived) {
    char bytes[4096];
    const auto got = recv(c.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) {
      ended = got == 0 || (errno != EAGAIN && errno != EINTR);
      break;
    }
    c.in.append(bytes, static_cast<size_t>(got));
    c.heard = Clock::now();
  }
  size_t taken = 0;
  for (; !ended && c.in.size() - taken >= sizeof(Header); taken += sizeof(Header)) {
    Header header;
    std::memcpy(&header, c.in.data() + taken, sizeof(header));
    ended = !take_answer(c, header, answers);
  }
  c.in.erase(0, taken);
  if (ended)
    lose(c, answers);
}

// Sends and receives what can be without waiting; gives the answers. Windows whose answer will not
// come are answered with kNothing.
Answers exchange(Connection& c) {
  Answers answers;
  if (c.owner != getpid()) {
    give_up(c, answers);
    c.starts = c.lost = 0;
    c.gone = false;
    c.owner = getpid();
  }
  c.loads = c.loads && Clock::now() - c.started < kLoading;
  if (c.asked.empty() && !c.loads)
    return answers;
  if (c.fd < 0 && !reach(c)) {
    c.gone = true;
    give_up(c, answers);
  }
  if (c.fd >= 0)
    send_requests(c, answers);
  if (c.fd >= 0)
    receive_answers(c, answers);
  // It was stopped, or hangs. Whoever waits for it gets its plans elsewhere.
  if (!c.asked.empty() && Clock::now() - c.heard > c.patience) {
    c.gone = true;
    give_up(c, answers);
  }
  return answers;
}

bool is_asked(const Connection& c, const WindowPlan& window) {
  return c.asked.count(window.request) > 0;
}

void put_header(Connection& c, const Header& header) {
  c.out.append(reinterpret_cast<const char*>(&header), sizeof(header));
}

void take_in(const Answers& answers) {
  for (const auto& [window, answer] : answers) {
    if (answer == kKept && find_kept(*window))
      continue;
    FoundPlan none;  // it may ask again, or another one than the builder
    if (answer == kFailedForNow) {
      none.error = "the builder could not make it for now: its log says why";
      none.may_pass = true;
    }
    window->refused = window->refused || answer == kKept;  // a plan that is of no use here
    finish_window(*window, std::move(none));
  }
}

}  // namespace

void set_builder(std::string socket, std::vector<std::string> command, double patience) {
  auto& c = connection();
  Answers answers;
  {
    const std::lock_guard<std::mutex> lock(c.mutex);
    give_up(c, answers);
    c.socket = std::move(socket);
    c.command = std::move(command);
    c.patience =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience));
    c.owner = getpid();
    c.starts = c.lost = 0;
    c.gone = c.works = false;
  }
  take_in(answers);
}

void set_standby(int fd) {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  c.standby = fd;
}

void end_standby() {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (const int standby = std::exchange(c.standby, -1); standby >= 0)
    close(standby);
}

void start_builder() {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (c.socket.empty() || c.starts > 0)
    return;
  const auto found = reach_builder(c.socket);
  if (found.fd >= 0)
    close(found.fd);
  if (found.who == Reached::nobody)
    start(c);
}

bool ask_builder(const std::shared_ptr<WindowPlan>& window, double seconds) {
  auto& c = connection();
  if (window->refused)
    return false;
  const auto structure = structure_of(*window);
  if (structure.key.empty() || structure.key.size() + structure.example.size() > kMostRequest / 2)
    return false;
  hear_builder();  // a child process has to know first that it has nothing to do with its parent's
  {
    const std::lock_guard<std::mutex> lock(c.mutex);
    if (c.socket.empty() || c.gone)
      return false;
    if (c.asked.empty())
      c.heard = Clock::now();
    // Two windows may have one number of the store's, but no request of another's.
    if (!is_asked(c, *window)) {
      const auto number = window->request = ++c.last_request;
      c.asked.emplace(number, window);
      Writer archive;
      archive(structure.key, structure.example);
      put_header(c, {number, static_cast<uint32_t>(archive.bytes.size()), seconds});
      c.out += archive.bytes;
      c.works = true;
    }
  }
  hear_builder();
  return true;
}

void tell_builder(const WindowPlan& window, double seconds) {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (is_asked(c, window))
    put_header(c, {window.request, 0, seconds});
}

bool builder_runs() {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (c.socket.empty() || c.gone)
    return false;
  const auto found = reach_builder(c.socket);
  if (found.fd >= 0)
    close(found.fd);
  return found.fd >= 0;
}

bool builder_works() {
  auto& c = connection();
  if (!c.works && !c.loads)
    return false;
  // Who waits for a plan listens. The windows that were asked for may never come again, though.
  if (Clock::now() - c.listened.load(std::memory_order_relaxed) >= kListen)
    hear_builder();
  return c.works || c.loads;
}

double seconds_for_plan(size_t calls) {
  return connection().seconds_per_call * static_cast<double>(kCallsOfPlan + calls);
}

void hear_builder(const WindowPlan* wait, bool (*interrupted)()) {
  auto& c = connection();
  for (;;) {
    Answers answers;
    bool waits = false;
    int fd = -1;
    {
      const std::lock_guard<std::mutex> lock(c.mutex);
      answers = exchange(c);
      c.listened.store(Clock::now(), std::memory_order_relaxed);
      c.works = !c.asked.empty();
      waits = wait != nullptr && is_asked(c, *wait);
      fd = c.fd;
    }
    take_in(answers);
    if (!waits || (interrupted != nullptr && interrupted()))
      return;
    pollfd ready{fd, POLLIN, 0};
    if (fd >= 0)
      poll(&ready, 1, kWaitMilliseconds);
    else
      std::this_thread::sleep_for(kTryAgain);
  }
}

std::pair<int, size_t> builder_state() {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  return {c.starts, c.asked.size()};
}

}  // namespace tenon
