#include "cli/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/host.h"

namespace dofla::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kQuiet = 2s;  // shorter work shows nothing
constexpr auto kRedraw = 100ms;
constexpr auto kLineInterval = 10s;
constexpr int64_t kStepsALine = 50;  // of training, where lines are kept

std::string short_number(double number) {  // three digits and a unit: 730k, 1.24M
  const char* unit = "";
  for (const char* larger : {"k", "M", "G", "T"}) {
    if (number < 999.5) break;
    number /= 1000;
    unit = larger;
  }
  const int decimals = *unit == '\0' && number == std::floor(number) ? 0
                       : number < 9.995                              ? 2
                       : number < 99.95                              ? 1
                                                                     : 0;
  return fmt::format("{:.{}f}{}", number, decimals, unit);
}

std::string clock_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(std::ceil(seconds), 3.6e6));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

int terminal_columns() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string progress_line(const ProgressUpdate& update, double seconds, int columns) {
  const std::string loss =
      update.training == nullptr ? "" : fmt::format("  loss {:.4f}", update.training->loss);
  const auto done = static_cast<double>(update.done);
  const auto total = static_cast<double>(update.total);
  const double rate = seconds > 0 ? done / seconds : 0;
  if (update.total <= 0)
    return fmt::format("{}  {} {}  {}/s", update.stage, short_number(done), update.unit,
                       short_number(rate));
  const double share = std::clamp(done / total, 0.0, 1.0);
  const std::string left = rate > 0 ? "  " + clock_time((total - done) / rate) + " left" : "";
  const std::string figures =
      fmt::format("{:3.0f}%  {} of {} {}{}  {}/s{}", std::floor(100 * share), short_number(done),
                  short_number(total), update.unit, loss, short_number(rate), left);
  const int space = columns - static_cast<int>(update.stage.size() + figures.size()) - 6;
  if (space < 8) return fmt::format("{}  {}", update.stage, figures);
  const int width = std::min(space, 40);
  const int filled = static_cast<int>(share * width);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < width) bar += '>';
  bar.resize(static_cast<size_t>(width), ' ');
  return fmt::format("{} [{}] {}", update.stage, bar, figures);
}

ProgressBar::ProgressBar(const std::atomic<bool>* stop)
    : stop_(stop), terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  wipe();
}

Progress ProgressBar::progress() {
  if (const Host* host = current_host())
    return host->progress.value_or(Progress([](const ProgressUpdate&) {}, stop_));
  return Progress([this](const ProgressUpdate& now) { update(now); }, stop_);
}

void ProgressBar::update(const ProgressUpdate& update) {
  const Clock::time_point now = Clock::now();
  if (update.stage != stage_) {
    wipe();
    stage_ = update.stage;
    start_ = now;
    next_ = now + kQuiet;
  }
  const bool wanted =
      !terminal_ && update.training != nullptr && update.training->step % kStepsALine == 0;
  if (now < next_ && !wanted) return;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (terminal_) {
    const int columns = terminal_columns();
    const std::string line = progress_line(update, seconds, columns);
    fmt::print(stderr, "\r\x1b[K{:.{}}", line, std::max(columns - 1, 1));
    std::fflush(stderr);
    drawn_ = true;
    next_ = now + kRedraw;
  } else if (wanted || update.done != update.total) {
    fmt::print(stderr, "{}\n", progress_line(update, seconds, 0));
    next_ = now + kLineInterval;
  }
}

void ProgressBar::wipe() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace dofla::cli
