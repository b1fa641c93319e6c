// Tokenizing speed on one core, and the time to load a tokenizer, on the built-in Wikipedia text.
//   build/release/bench/tokenizer_bench [MODEL_FOLDER]…
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <zstd.h>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/json.h"

namespace dofla {
namespace {

constexpr int kRepeats = 7;

std::vector<std::string> articles() {
  const MappedFile file(fs::path(DOFLA_SOURCE_DIR) / "assets/wikipedia.jsonl.zst");
  const auto packed = file.bytes();
  std::string lines(ZSTD_getFrameContentSize(packed.data(), packed.size()), '\0');
  ZSTD_decompress(lines.data(), lines.size(), packed.data(), packed.size());
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    texts.push_back(Json::parse(lines.substr(begin, end - begin)).at("text"));
    begin = end + 1;
  }
  return texts;
}

template <class Work>
std::vector<double> seconds(const Work& work) {  // of each repeat, the fastest first
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times;
}

void measure(const fs::path& folder, const std::vector<std::string>& texts) {
  const auto load = seconds([&] { Tokenizer::load(folder); });
  double megabytes = 0;
  for (const std::string& text : texts) megabytes += static_cast<double>(text.size()) * 1e-6;

  size_t tokens = 0;
  const auto encode_all = [&](const Tokenizer& tokenizer) {
    tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
  };
  const Tokenizer warm = Tokenizer::load(folder);
  encode_all(warm);
  const auto again = seconds([&] { encode_all(warm); });
  std::vector<Tokenizer> fresh;
  for (int i = 0; i < kRepeats; ++i) fresh.push_back(Tokenizer::load(folder));
  auto next = fresh.begin();
  const auto first = seconds([&] { encode_all(*next++); });

  std::printf(
      "%-40s load %5.1f ms   encode %6.1f MB/s   with an empty cache %6.1f MB/s   "
      "(median of %d; %.2f MB, %zu tokens)\n",
      folder.c_str(), load[kRepeats / 2] * 1e3, megabytes / again[kRepeats / 2],
      megabytes / first[kRepeats / 2], kRepeats, megabytes, tokens);
}

}  // namespace
}  // namespace dofla

int main(int argc, char** argv) {
  const dofla::fs::path source = DOFLA_SOURCE_DIR;
  std::vector<dofla::fs::path> folders(argv + 1, argv + argc);
  if (folders.empty())
    folders = {source / "tests/tokenizers/gpt2", source / "tests/tokenizers/gpt_neox",
               source / "tests/models/stories260K", source / "assets/wiki-mini"};
  const std::vector<std::string> texts = dofla::articles();
  for (const dofla::fs::path& folder : folders) dofla::measure(folder, texts);
}
