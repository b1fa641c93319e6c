#include "dofla/report/training_log.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "dofla/core/error.h"
#include "dofla/core/json.h"

namespace dofla {
namespace {

constexpr std::string_view kSeconds = "seconds";

std::string cell(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "";
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line);
  for (std::string one; std::getline(text, one, ',');) cells.push_back(one);
  return cells;
}

std::string csv_header(const TrainingStep& step) {
  std::string header = "step,loss,learning_rate";
  if (step.alpha_rate) header += ",learning_rate_alpha";
  header += fmt::format(",tokens_per_second,{}", kSeconds);
  for (size_t i = 0; i < step.layer_losses.size(); ++i) header += fmt::format(",layer_{}", i + 1);
  return header + "\n";
}

struct Row {
  int64_t step = 0;
  double seconds = 0;
};

// What a line says of its step; nothing for a line that is not of a log.
std::optional<Row> read_csv(const std::vector<std::string>& header, const std::string& line) {
  const std::vector<std::string> cells = cells_of(line);
  Row row;
  for (size_t i = 0; i < std::min(cells.size(), header.size()); ++i) {
    const char *begin = cells[i].data(), *end = begin + cells[i].size();
    const bool is_step = header[i] == "step";
    if (!is_step && header[i] != kSeconds) continue;
    const auto result =
        is_step ? std::from_chars(begin, end, row.step) : std::from_chars(begin, end, row.seconds);
    if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  }
  return row.step > 0 ? std::optional(row) : std::nullopt;
}

std::optional<Row> read_jsonl(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
      !json.contains(kSeconds) || !json[kSeconds].is_number())
    return std::nullopt;
  return Row{json["step"].get<int64_t>(), json[kSeconds].get<double>()};
}

}  // namespace

TrainingLog::Format TrainingLog::format_of(const fs::path& file) {
  if (file.extension() == ".csv") return Format::kCsv;
  if (file.extension() == ".jsonl") return Format::kJsonl;
  fail("{}: expected a name that ends in .csv or .jsonl", file.string());
}

void TrainingLog::check(const fs::path& file, bool resume) {
  format_of(file);
  if (!resume && fs::exists(fs::symlink_status(file)))
    fail("{}: exists already; choose another name or remove it", file.string());
}

TrainingLog::TrainingLog(const fs::path& file, bool resume)
    : file_(file), resume_(resume), format_(format_of(file)) {
  check(file, resume);
}

void TrainingLog::add(const TrainingStep& step) {
  if (!out_.is_open()) begin(step);
  out_ << line(step) << std::flush;
  if (!out_) fail("{}: cannot write: the disk may be full", file_.string());
}

void TrainingLog::begin(const TrainingStep& first) {
  std::string before;
  if (resume_ && fs::exists(file_)) before = lines_before(first.step);
  if (before.empty() && format_ == Format::kCsv) before = csv_header(first);
  write_whole(file_, before);
  out_.open(file_, std::ios::app);
  if (!out_) fail("{}: cannot write", file_.string());
}

std::string TrainingLog::lines_before(int64_t step) {
  std::istringstream text(read_text(file_));
  std::string kept;
  std::vector<std::string> header;
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    if (text.eof()) break;  // cut short while it was written
    ++number;
    if (format_ == Format::kCsv && number == 1) {
      header = cells_of(line);
    } else {
      const auto row = format_ == Format::kCsv ? read_csv(header, line) : read_jsonl(line);
      if (!row)
        fail("{}: line {}: not a line of a training log; choose another name for it",
             file_.string(), number);
      if (row->step >= step) break;
      seconds_before_ = row->seconds;
    }
    kept += line + "\n";
  }
  return kept;
}

std::string TrainingLog::line(const TrainingStep& step) const {
  const double seconds = seconds_before_ + step.seconds;
  if (format_ == Format::kCsv) {
    std::string text = fmt::format("{},{},{}", step.step, cell(step.loss), step.learning_rate);
    if (step.alpha_rate) text += fmt::format(",{}", *step.alpha_rate);
    text += fmt::format(",{},{}", step.tokens_per_second, seconds);
    for (const double loss : step.layer_losses) {
      text += ',';
      text += cell(loss);
    }
    return text + "\n";
  }
  nlohmann::ordered_json json = {
      {"step", step.step}, {"loss", step.loss}, {"learning_rate", step.learning_rate}};
  if (step.alpha_rate) json["learning_rate_alpha"] = *step.alpha_rate;
  json["tokens_per_second"] = step.tokens_per_second;
  json[std::string(kSeconds)] = seconds;
  if (!step.layer_losses.empty()) json["layers"] = step.layer_losses;
  return json.dump() + "\n";
}

}  // namespace dofla
