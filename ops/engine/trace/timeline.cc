#include "engine/trace/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>  // for exchange

#include "core/c_numbers.h"
#include "core/deadline.h"

namespace smddp {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
// If the file cannot take more: later events are lost.
constexpr size_t kMostBytes = 64 << 20;
constexpr double kCloseSeconds = 5;

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

// The text's first bytes, without a part of a character.
std::string Beginning(const std::string& text, size_t bytes) {
  auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  while (bytes > 0 && bytes < text.size() && continues(bytes)) --bytes;
  return text.substr(0, bytes);
}

std::string OfRank(const std::string& path, int rank) {
  size_t slash = path.rfind('/'), dot = path.rfind('.');
  bool has_dot = dot != std::string::npos && (slash == std::string::npos || dot > slash);
  std::string stem = has_dot ? path.substr(0, dot) : path;
  return stem + ".rank" + std::to_string(rank) + (has_dot ? path.substr(dot) : ".json");
}

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Status Timeline::Start(const std::string& path, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ != nullptr) {
    return {Code::kUsage, "a timeline is being written already; call stop_timeline() first"};
  }
  std::string own = OfRank(path, process_ >= 0 ? process_ : rank);
  auto refused = [&](const std::string& why) {
    return Status(Code::kUsage, "the timeline " + own + " cannot be written: " + why);
  };
  const int file = ::open(own.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return refused(std::strerror(errno));
  try {
    file_ = std::make_unique<BackgroundWriter>(file, true, kMostBytes);
  } catch (const std::system_error& error) {
    ::close(file);
    return refused(error.what());
  }
  rank_ = rank;
  named_tracks_ = 0;
  to_wall_clock_ = WallSeconds() - NowSeconds();
  buffer_ = "[\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " + std::to_string(rank) +
            ", \"args\": {\"name\": \"rank " + std::to_string(rank) + "\"}}";
  on_ = true;
  return {};
}

void Timeline::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  on_ = false;
  if (file_ == nullptr) return;
  buffer_ += "\n]\n";
  FlushLocked();
  file_->Flush(kCloseSeconds);
  file_.reset();
}

void Timeline::NameTrack(int track) {
  uint64_t bit = 1ull << (track % 64);
  if (named_tracks_ & bit) return;
  named_tracks_ |= bit;
  std::string name = track % 2 == 1 ? "gradients" : "collectives";
  if (track > 1) name += " of process set " + std::to_string(track / 2);
  buffer_ += ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": " + std::to_string(rank_) +
             ", \"tid\": " + std::to_string(track) + ", \"args\": {\"name\": \"" + name + "\"}}";
}

void Timeline::Add(const TimelineEvent& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ == nullptr) return;
  CNumbers as_in_c;
  NameTrack(event.track);
  auto micros = [&](double seconds) { return (seconds + to_wall_clock_) * 1e6; };
  char text[768];
  auto span = [&](const char* name, double from, double to) {
    std::snprintf(text, sizeof text,
                  ",\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
                  "\"dur\": %.3f",
                  name, rank_, event.track, micros(from), (to - from) * 1e6);
    buffer_ += text;
  };
  span(Escaped(Beginning(event.title, 200)).c_str(), event.started, event.done);
  std::snprintf(text, sizeof text,
                ", \"cat\": \"collective\", \"args\": {\"bytes\": %zu, \"sequence\": %llu, "
                "\"ready\": %.3f, \"failed\": %s}}",
                event.bytes, static_cast<unsigned long long>(event.sequence), micros(event.ready),
                event.failed ? "true" : "false");
  buffer_ += text;
  double met = event.met > 0 ? event.met : event.done;
  span("waiting for peers", event.started, met);
  buffer_ += ", \"cat\": \"phase\"}";
  span("moving bytes", met, event.done);
  buffer_ += ", \"cat\": \"phase\"}";
  if (buffer_.size() > kBufferBytes) FlushLocked();
}

void Timeline::Flush() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ != nullptr) FlushLocked();
}

void Timeline::FlushLocked() { file_->Write(std::exchange(buffer_, "")); }

}  // namespace smddp
