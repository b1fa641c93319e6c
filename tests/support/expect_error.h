// One way to say: this is refused, and the message helps.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "dofla/core/error.h"

namespace dofla::test {

// Expects an Error whose text is one line and holds each of `parts`: the file and the defect.
template <class Action>
void expect_error(const Action& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const std::string_view part : parts)
      EXPECT_NE(text.find(part), text.npos) << "no \"" << part << "\" in: " << text;
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    return;
  }
  ADD_FAILURE() << "accepted; expected an error with \"" << *parts.begin() << "\"";
}

}  // namespace dofla::test
