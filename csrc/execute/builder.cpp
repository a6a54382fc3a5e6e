#include "execute/builder.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "device/fork.h"
#include "execute/plan_file.h"
#include "record/archive.h"

extern char** environ;

namespace tenon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostStarts = 4;
constexpr auto kTryAgain = std::chrono::milliseconds(20);
constexpr auto kStarting = std::chrono::seconds(20);  // after which it is taken for dead
constexpr int kWaitMilliseconds = 50;

// Until the builder has told.
constexpr double kSecondsPerCall = 0.01;

// What goes to the builder is a header and the window's structure, or, of a window that it was
// asked for already, a header alone. So is what comes back.
struct Header {
  uint32_t number;  // of the window in this process
  uint32_t size;    // of what follows; of an answer: what came of it
  double seconds;   // that runs by reference have taken; of an answer: of planning a call
};
enum Answer : uint32_t { kNothing, kKept, kFailedForNow };  // as builder/server.py has them
using Answers = std::vector<std::pair<std::shared_ptr<WindowPlan>, uint32_t>>;

struct Connection {
  std::mutex mutex;
  std::string socket;
  std::vector<std::string> command;
  pid_t owner = -1;  // the process that it is of: a child has none of it
  int fd = -1;
  int starts = 0;
  Clock::time_point started, tried;
  std::string out, in;
  std::map<uint32_t, std::shared_ptr<WindowPlan>> asked;
  std::atomic<bool> works{false};  // is any asked?
  std::atomic<double> seconds_per_call{kSecondsPerCall};
};

Connection& connection() {
  static auto* instance = [] {
    auto* made = new Connection();
    take_at_fork(made->mutex, ForkOrder::builder);
    return made;
  }();
  return *instance;
}

const auto& at_load [[maybe_unused]] = connection();

void disconnect(Connection& c) {
  if (c.fd >= 0)
    close(c.fd);
  c.fd = -1;
  c.out.clear();
  c.in.clear();
}

// Paths of sockets are short: a long one is reached by way of its directory.
int connected(const std::string& path) {
  const auto slash = path.rfind('/');
  const int folder = open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return -1;
  const auto near = c10::str("/proc/self/fd/", folder, path.substr(slash));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, near.c_str(), sizeof(address.sun_path) - 1);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    fd = -1;
  }
  close(folder);
  return fd;
}

// By a shell that ends at once, so that nobody has to wait for the builder's end.
bool start(Connection& c) {
  if (c.starts >= kMostStarts)
    return false;
  ++c.starts;
  c.started = Clock::now();
  std::string shell = "/bin/sh", option = "-c", line = "\"$0\" \"$@\" &";
  std::vector<char*> arguments{shell.data(), option.data(), line.data()};
  for (auto& word : c.command)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  // Whoever waits for the end of this process's output is not to wait for the builder's.
  const auto log = c.socket + ".log";
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == 0)
    waitpid(child, nullptr, 0);
  return failed == 0;
}

// Sends and receives what can be without waiting; gives the answers. Windows whose answer will not
// come are answered with kNothing.
Answers exchange(Connection& c) {
  Answers answers;
  const auto give_up = [&] {
    disconnect(c);
    for (auto& [number, window] : c.asked)
      answers.emplace_back(window, kNothing);
    c.asked.clear();
  };
  if (c.owner != getpid()) {
    disconnect(c);
    c.asked.clear();
    c.starts = 0;
    c.owner = getpid();
  }
  if (c.asked.empty())
    return answers;
  if (c.fd < 0) {
    const auto now = Clock::now();
    if (now - c.tried < kTryAgain)
      return answers;
    c.tried = now;
    c.fd = connected(c.socket);
    if (c.fd < 0) {
      if ((c.starts == 0 || now - c.started > kStarting) && !start(c))
        give_up();
      return answers;
    }
  }
  while (!c.out.empty()) {
    const auto sent = send(c.fd, c.out.data(), c.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR)
        give_up();
      break;
    }
    c.out.erase(0, static_cast<size_t>(sent));
  }
  while (c.fd >= 0) {
    char bytes[4096];
    const auto got = recv(c.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) {
      c.in.append(bytes, static_cast<size_t>(got));
      continue;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      // It ended, or was killed. The next one is started when it is asked for something.
      give_up();
      c.started = {};
    }
    break;
  }
  while (c.in.size() >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, c.in.data(), sizeof(header));
    c.in.erase(0, sizeof(header));
    if (header.seconds > 0)
      c.seconds_per_call = header.seconds;
    const auto found = c.asked.find(header.number);
    if (found == c.asked.end())
      continue;
    if (header.size == kNothing)
      found->second->refused = true;
    answers.emplace_back(found->second, header.size);
    c.asked.erase(found);
  }
  return answers;
}

void put_header(Connection& c, const Header& header) {
  c.out.append(reinterpret_cast<const char*>(&header), sizeof(header));
}

}  // namespace

void set_builder(std::string socket, std::vector<std::string> command) {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  c.socket = std::move(socket);
  c.command = std::move(command);
  c.owner = getpid();
}

void start_builder() {
  auto& c = connection();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (c.socket.empty() || c.starts > 0)
    return;
  const int fd = connected(c.socket);
  if (fd >= 0)
    close(fd);
  else
    start(c);
}

bool ask_builder(const std::shared_ptr<WindowPlan>& window, double seconds) {
  auto& c = connection();
  if (window->refused)
    return false;
  const auto structure = structure_of(*window);
  if (structure.key.empty())
    return false;
  {
    const std::lock_guard<std::mutex> lock(c.mutex);
    if (c.socket.empty() || c.starts > kMostStarts)
      return false;
    const auto number = static_cast<uint32_t>(window->id);
    if (c.asked.emplace(number, window).second) {
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
  const auto number = static_cast<uint32_t>(window.id);
  if (c.asked.count(number) > 0)
    put_header(c, {number, 0, seconds});
}

bool builder_works() {
  return connection().works;
}

double seconds_per_call() {
  return connection().seconds_per_call;
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
      c.works = !c.asked.empty();
      waits = wait != nullptr && c.asked.count(static_cast<uint32_t>(wait->id)) > 0;
      fd = c.fd;
    }
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
