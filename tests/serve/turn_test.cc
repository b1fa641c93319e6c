#include "dofla/serve/turn.h"

#include <chrono>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

TEST(Turn, IsGivenInOrderAndOnOneThread) {
  Turn turn;
  std::promise<void> begun, go_on;
  std::vector<int> order;
  std::set<std::thread::id> by;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    turn.run([&] {
      begun.set_value();
      go_on.get_future().wait();
    });
  });
  begun.get_future().wait();
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      turn.run([&] {
        order.push_back(i);
        by.insert(std::this_thread::get_id());
      });
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  go_on.set_value();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(by.size(), 1U);
  EXPECT_THROW(turn.run([] { throw Error("no"); }), Error);
}

}  // namespace
}  // namespace dofla
