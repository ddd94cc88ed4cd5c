// Threads of our own: started for one call and joined before it returns, so that nothing is left over to break a fork.
#pragma once

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace foveate {

// A thread costs about 20 microseconds to start; one is started for every share of at least this much work.
constexpr double kLeastNanoseconds = 80e3;
constexpr double kPartNanoseconds = 40e3;

// work(first, last) on parts of [0, count); each item takes about `nanoseconds`. At most `threads` threads take part.
template <class Work>
void in_parallel(long count, double nanoseconds, int threads, const Work& work) {
  const long useful = static_cast<long>(static_cast<double>(count) * nanoseconds / kLeastNanoseconds);
  const long team = std::min<long>({threads, useful, count});
  if (team <= 1) {
    if (count > 0) work(0L, count);
    return;
  }
  // Small parts, so that nobody waits long for the last one.
  const long part = std::max<long>(1, std::min(count / (team * 8), static_cast<long>(kPartNanoseconds / nanoseconds)));
  std::atomic<long> next{0};
  const auto run = [&] {
    for (long first; (first = next.fetch_add(part)) < count;) work(first, std::min(first + part, count));
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(team - 1));
  try {
    while (static_cast<long>(others.size()) < team - 1) others.emplace_back(run);
  } catch (const std::system_error&) {
    // No more threads to be had: those that run do the work.
  }
  run();
  for (auto& thread : others) thread.join();
}

}  // namespace foveate
