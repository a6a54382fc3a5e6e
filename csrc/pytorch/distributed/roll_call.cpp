#include "distributed/roll_call.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>

namespace tenon {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A process that ends closes its connections a moment before it is seen to have ended.
constexpr milliseconds kUntilSeen{1000};
constexpr milliseconds kForAnswers{5000};
constexpr milliseconds kForTheStore{2000};
constexpr milliseconds kPause{10};
constexpr const char* kLost = "lost";
constexpr const char* kAnswer = "answer";

std::string key_of(const std::string& what, int rank) {
  return what + "/" + std::to_string(rank);
}

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Processes with the same numbers: of one machine since it started, and of one container.
std::string this_machine() {
  char space[64] = "";
  const auto length = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
  return first_line("/proc/sys/kernel/random/boot_id") + "," +
         std::string(space, length > 0 ? static_cast<size_t>(length) : 0);
}

// What follows the name in a process's `stat`, which may have any characters: its state, and, as
// the 20th word, when it was started.
std::vector<std::string> state_of(long pid) {
  const auto line = first_line(("/proc/" + std::to_string(pid) + "/stat").c_str());
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos)
    return {};
  std::istringstream words(line.substr(name_end + 1));
  std::vector<std::string> found;
  for (std::string word; words >> word;)
    found.push_back(word);
  return found.size() >= 20 ? found : std::vector<std::string>{};
}

// A store may be served by the rank that is gone, and then a question is never answered: it is
// asked on a thread of its own, which nobody waits for any longer than this. False: no answer.
bool ask(std::function<void()> question, milliseconds patience) {
  struct Asked {
    std::mutex mutex;  // not of forks: as that of the roll call
    std::condition_variable changed;
    bool over = false, answered = false;
  };
  const auto asked = std::make_shared<Asked>();
  std::thread([asked, question = std::move(question)] {
    bool answered = true;
    try {
      question();
    } catch (...) {
      answered = false;
    }
    const std::lock_guard<std::mutex> lock(asked->mutex);
    asked->over = true;
    asked->answered = answered;
    asked->changed.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(asked->mutex);
  asked->changed.wait_for(lock, patience, [&] { return asked->over; });
  return asked->answered;
}

}  // namespace

std::string RollCall::Record::text() const {
  return machine + " " + host + " " + started + " " + std::to_string(pid);
}

RollCall::Record RollCall::Record::of_text(const std::string& text) {
  Record record;
  std::istringstream(text) >> record.machine >> record.host >> record.started >> record.pid;
  return record;
}

RollCall::Record RollCall::Record::of_this_process() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const auto state = state_of(getpid());
  return {this_machine(), *host != 0 ? host : "?", state.empty() ? "?" : state[19], long{getpid()}};
}

bool RollCall::Record::is_alive() const {
  if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)
    return false;
  const auto state = state_of(pid);
  // Where there is no such file, the number of the process is all that is known.
  if (state.empty())
    return state_of(getpid()).empty();
  return state[0] != "Z" && state[0] != "X" && state[19] == started;
}

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)),
      rank_(rank),
      own_(Record::of_this_process()),
      records_(static_cast<size_t>(size)) {
  store_->set(key_of("process", rank), bytes(own_.text()));
}

void RollCall::meet() {
  std::vector<std::string> keys;
  for (size_t rank = 0; rank < records_.size(); ++rank)
    keys.push_back(key_of("process", static_cast<int>(rank)));
  if (!store_->check(keys))
    return;
  const auto found = store_->multiGet(keys);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t rank = 0; rank < found.size(); ++rank)
    records_[rank] = Record::of_text(tenon::text(found[rank]));
}

std::string RollCall::describe(const std::vector<int>& ranks) const {
  std::string found;
  for (const int rank : ranks) {
    const auto& record = *records_[rank];
    const bool here = record.machine == own_.machine;
    found += (found.empty() ? "" : "; ") + ("rank " + std::to_string(rank)) +
             (here ? " is gone: its process " + std::to_string(record.pid) + " has ended"
                   : " on " + record.host + " does not answer");
  }
  return found;
}

// Those of this machine whose process has ended.
std::vector<int> RollCall::missing() const {
  std::vector<int> found;
  for (size_t rank = 0; rank < records_.size(); ++rank) {
    const auto& record = records_[rank];
    if (record && record->machine == own_.machine && !record->is_alive())
      found.push_back(static_cast<int>(rank));
  }
  return found;
}

// A store may serve a group after this one; such keys are this one's alone.
std::string RollCall::key_of_group(const std::string& name) const {
  return name + "/" + (records_[0] ? records_[0]->text() : "");
}

// What another rank has found; nothing: the store does not answer.
std::optional<std::string> RollCall::word_left() const {
  const auto word = std::make_shared<std::string>();
  const bool answered = ask(
      [store = store_, word, key = key_of_group(kLost)] {
        if (store->check({key}))
          *word = tenon::text(store->get(key));
      },
      kForTheStore);
  return answered ? std::optional(*word) : std::nullopt;
}

// Those of other machines that do not answer in time.
std::vector<int> RollCall::silent() const {
  std::vector<int> found;
  for (size_t rank = 0; rank < records_.size(); ++rank) {
    if (records_[rank] && records_[rank]->machine != own_.machine)
      found.push_back(static_cast<int>(rank));
  }
  const auto answers = key_of_group(kAnswer);
  const auto here = [store = store_, key = key_of(answers, rank_)] {
    store->set(key, bytes("here"));
  };
  if (found.empty() || !ask(here, kForTheStore))
    return {};
  const auto begun = Clock::now();
  while (!found.empty() && Clock::now() - begun < kForAnswers) {
    const auto left = std::make_shared<std::vector<int>>();
    const auto look = [store = store_, answers, found, left] {
      for (const int rank : found) {
        if (!store->check({key_of(answers, rank)}))
          left->push_back(rank);
      }
    };
    if (!ask(look, kForTheStore))
      return {};
    found = *left;
    std::this_thread::sleep_for(10 * kPause);
  }
  return found;
}

std::string RollCall::find_lost() {
  const auto word = word_left();
  if (word && !word->empty())
    return *word;
  const auto begun = Clock::now();
  auto lost = missing();
  while (lost.empty() && Clock::now() - begun < kUntilSeen) {
    std::this_thread::sleep_for(kPause);
    lost = missing();
  }
  if (lost.empty() && word)
    lost = silent();
  if (lost.empty())
    return "";
  const auto sentence = describe(lost);
  const auto leave = [store = store_, sentence, key = key_of_group(kLost)] {
    store->compareSet(key, {}, bytes(sentence));
  };
  if (word)
    ask(leave, kForTheStore);
  return sentence;
}

std::string RollCall::explain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost_.empty())
    lost_ = find_lost();
  if (!lost_.empty())
    return lost_;
  return "No rank is seen to be gone: has each called the same collective, with tensors of the "
         "same sizes and dtype? TORCH_DISTRIBUTED_DEBUG=DETAIL compares them before each.";
}

}  // namespace tenon
