#include "dofla/serve/text_stream.h"

#include <algorithm>
#include <utility>

#include "dofla/data/utf8.h"

namespace dofla {

TextStream::TextStream(StreamDecoder decoder, std::vector<std::string> stops)
    : decoder_(std::move(decoder)), stops_(std::move(stops)) {}

TextStream::Shown TextStream::next(int64_t id) {
  if (stopped_) return {};
  waiting_.push_back(
      {shown_bytes_ + std::ssize(held_), shown_characters_ + count_characters(held_)});
  held_ += decoder_.next(id);
  return show(/*all=*/false);
}

TextStream::Shown TextStream::finish() {
  if (stopped_) return {};
  held_ += decoder_.finish();
  return show(/*all=*/true);
}

size_t TextStream::held_back() const {
  size_t most = 0;
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > most; --length)
      if (held_.ends_with(std::string_view(stop).substr(0, length))) most = length;
  return most;
}

TextStream::Shown TextStream::show(bool all) {
  size_t end = held_.npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  stopped_ = end != held_.npos;
  if (!stopped_) end = held_.size() - (all ? 0 : held_back());

  Shown shown;
  shown.text = held_.substr(0, end);
  held_.erase(0, end);
  shown_bytes_ += std::ssize(shown.text);
  shown_characters_ += count_characters(shown.text);
  // A token without a text of its own, part of a character, goes with what stands before it.
  const bool whole = held_.empty() && !stopped_;
  while (!waiting_.empty() && (whole || waiting_.front().byte < shown_bytes_)) {
    shown.offsets.push_back(waiting_.front().character);
    waiting_.pop_front();
  }
  return shown;
}

}  // namespace dofla
