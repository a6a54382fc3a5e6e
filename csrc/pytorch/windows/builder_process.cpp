#include "windows/builder_process.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace tenon {
namespace {

// Paths of sockets are short: a long one is reached by way of its directory.
int connect_within(int folder, std::string_view name, int fd) {
  const auto near = c10::str("/proc/self/fd/", folder, name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, near.c_str(), sizeof(address.sun_path) - 1);
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

bool is_ours_alone(int folder) {
  struct stat status{};
  return fstat(folder, &status) == 0 && status.st_uid == getuid() &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Of the user who listens.
bool is_of_this_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

}  // namespace

Reached reach_builder(const std::string& path) {
  const auto slash = path.rfind('/');
  const int folder = open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return {Reached::nobody};
  Reached found{is_ours_alone(folder) ? Reached::nobody : Reached::stranger};
  if (found.who == Reached::nobody) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int error = fd < 0 ? errno : connect_within(folder, path.substr(slash), fd);
    if (error == 0 && is_of_this_user(fd))
      found = {Reached::builder, fd};
    else if (error == 0)
      found.who = Reached::stranger;
    else if (error == EAGAIN)
      found.who = Reached::busy;
    if (fd >= 0 && found.fd < 0)
      close(fd);
  }
  close(folder);
  return found;
}

bool wake_builder_process(int standby, const std::string& path, const std::string& log) {
  std::string order = path;
  order += '\0';
  order += log;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    order += '\0';
    order += *entry;
  }
  const auto sent = send(standby, order.data(), order.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(order.size());
}

// By a shell that ends at once, so that nobody has to wait for the builder's end.
bool start_builder_process(const std::vector<std::string>& command, const std::string& log) {
  std::vector<std::string> words{"/bin/sh", "-c", "\"$0\" \"$@\" &"};
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> arguments;
  for (auto& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  // Whoever waits for the end of this process's output is not to wait for the builder's.
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
  if (failed != 0)
    return false;
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return true;
}

}  // namespace tenon
