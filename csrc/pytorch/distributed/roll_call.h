// Which ranks are gone: what a collective's error is explained by.
//
// Each rank leaves a record of its process in the group's store when the group begins, and reads
// those of the others. When a collective ends with an error, processes of this machine are looked
// for; ranks of other machines have to answer by the store. Who finds a rank lost leaves word in
// the store, so that ranks that lose the finder next name the first one.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tenon {

class RollCall {
 public:
  // Leaves the record of this rank, one of `size`.
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // Reads the records of the others, as far as they are there. Call it when all have come.
  void meet();

  // Who is gone, or that nobody is, in a sentence; waits a few seconds at most. On any thread.
  std::string explain();

 private:
  struct Record {
    std::string machine, host, started;
    long pid = 0;

    std::string text() const;
    static Record of_text(const std::string& text);
    static Record of_this_process();
    bool is_alive() const;  // where it is of this machine
  };

  std::vector<int> missing() const;
  std::vector<int> silent() const;
  std::string find_lost();
  std::string describe(const std::vector<int>& ranks) const;
  std::optional<std::string> word_left() const;
  std::string key_of_group(const std::string& name) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const Record own_;
  std::vector<std::optional<Record>> records_;  // by rank
  std::mutex mutex_;  // not of forks: a child has no part in its parent's groups
  std::string lost_;  // once found
};

}  // namespace tenon
