#include "dofla/checkpoint/tokenizer/post_processor.h"

#include "dofla/checkpoint/tokenizer/vocabulary.h"

namespace dofla {
namespace {

PostProcessor parse_template(const JsonView& json) {
  PostProcessor out;
  bool text_seen = false;
  for (const JsonView& piece : json.elements("single")) {
    if (piece.has("Sequence")) {
      if (text_seen || piece["Sequence"].text("id") != "A")
        piece.refuse("expected the sequence A once, and no other");
      text_seen = true;
      continue;
    }
    const std::string name = piece["SpecialToken"].text("id");
    for (const JsonView& entry : json["special_tokens"][name].elements("ids")) {
      const int64_t id = entry.integer();
      if (id < 0 || id > Vocabulary::kLargestId)
        entry.refuse("id {} is not between 0 and {}", id, Vocabulary::kLargestId);
      (text_seen ? out.after : out.before).push_back(id);
    }
  }
  if (!text_seen) json.refuse("single: the sequence A is missing");
  return out;
}

}  // namespace

PostProcessor PostProcessor::parse(const JsonView& json) {
  PostProcessor out;
  if (json.is_null()) return out;
  const std::string type = json.text("type");
  if (type == "TemplateProcessing") return parse_template(json);
  if (type == "Sequence") {
    for (const JsonView& step : json.elements("processors")) {
      const PostProcessor outer = parse(step);
      out.before.insert(out.before.begin(), outer.before.begin(), outer.before.end());
      out.after.insert(out.after.end(), outer.after.begin(), outer.after.end());
    }
  } else if (type != "ByteLevel") {
    json.refuse("post-processor {} is not supported", type);
  }
  return out;
}

}  // namespace dofla
