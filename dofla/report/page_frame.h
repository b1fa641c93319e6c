// What every page of ours is framed by: head, style, title, footer, script.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dofla {

struct PageFrame {
  std::string title;    // plain text, as everything here but the body
  std::string about;    // one line below the title; may be empty
  std::string command;  // that made the page; may be empty
  std::string version;
};

// `body` is safe HTML.
std::string frame_page(const PageFrame& frame, const std::string& body);

// A table of names and values; "" if there are none.
std::string name_value_table(const std::vector<std::pair<std::string, std::string>>& rows);

}  // namespace dofla
