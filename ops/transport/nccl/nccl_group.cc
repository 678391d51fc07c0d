#include "transport/nccl/nccl_group.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>  // for move

#include "core/log.h"
#include "kernels/cuda/image.h"
#include "transport/nccl/runner.h"

namespace smddp {
namespace {

// A kernel that has been told to stop ends in milliseconds; freeing memory may take longer.
constexpr double kAbortSeconds = 3;
constexpr double kCloseSeconds = 8;

// The threads that NCCL before 2.24 makes for calls that do not block end with cudaSetDevice(0).
void WarnOfGpu0(const NcclLibrary& library, const CudaDevice& device) {
  if (library.version >= 22400 || device.ordinal() == 0) return;
  LogWarning("NCCL " + library.VersionText() +
             " also takes some hundred MB of GPU 0 for this rank; NCCL 2.24 or later does not, nor "
             "does a rank that sees its own GPU only (CUDA_VISIBLE_DEVICES)");
}

// NCCL takes ranks of different NCCL_HOSTID for those of different hosts, on one GPU too.
void AddHostId(char (&device)[16]) {
  const char* id = std::getenv("NCCL_HOSTID");
  if (id == nullptr) return;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (; *id != '\0'; ++id) hash = (hash ^ static_cast<unsigned char>(*id)) * 0x100000001b3;
  uint64_t begin = 0;
  std::memcpy(&begin, device, sizeof begin);
  begin ^= hash;
  std::memcpy(device, &begin, sizeof begin);
}

template <size_t n>
void Copy(const std::string& text, char (&to)[n]) {
  std::memcpy(to, text.data(), std::min(text.size(), n - 1));
}

}  // namespace

std::unique_ptr<NcclGroup> NcclGroup::Make(const Config& config) {
  if (config.nccl == "off") return nullptr;
  constexpr double kMostConnectSeconds = 120;
  NcclOptions options;
  options.path = config.nccl_library;
  options.hint = config.nccl_hint;
  options.required = config.nccl == "required";
  options.kernels = PackImage();
  options.connect_seconds = std::min(config.timeout_seconds / 2, kMostConnectSeconds);
  return std::make_unique<NcclGroup>(std::move(options));
}

NcclGroup::NcclGroup(NcclOptions options) : options_(std::move(options)) {}

NcclGroup::~NcclGroup() {
  if (runner_ != nullptr) runner_->Abort(0);
}

const NcclLibrary* NcclGroup::Library(std::string* why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!opened_) library_ = NcclLibrary::Open(options_.path, options_.hint, &problem_);
  opened_ = true;
  if (library_ == nullptr) *why = problem_;
  return library_.get();
}

std::string NcclGroup::Cannot(const DeviceCollective& collective) const {
  if (!collective.reduces()) return "";
  bool picks =
      collective.op == DeviceCollective::Op::kMin || collective.op == DeviceCollective::Op::kMax;
  switch (collective.dtype) {
    case DType::kFloat16:
    case DType::kBfloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return picks ? "NCCL leaves NaNs out of minima and maxima" : "";
    case DType::kInt8:
    case DType::kUint8:
    case DType::kInt32:
    case DType::kInt64:
      return collective.scaled() ? "NCCL scales integers in their own dtype" : "";
    default:
      return std::string("NCCL has no ") + Info(collective.dtype).name;
  }
}

std::string NcclGroup::Unavailable(Device* device) {
  if (std::strcmp(device->kind(), "cuda") != 0) return "its device is no GPU of NVIDIA's";
  std::string why;
  if (Library(&why) == nullptr) return why;
  // It goes before what a communicator asks for.
  const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::atoi(blocking) == 1) {
    return "NCCL_COMM_BLOCKING=1 has NCCL's calls wait for all ranks, and nothing could end them "
           "if one has died; unset it, or set it to 0";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  bool other = device_ != nullptr && device_ != device;
  return other ? "its tensors are on another GPU than before" : "";
}

// Whether the ranks have connected is known alike to all whenever a collective may start; the
// packer is then there on all ranks or on none.
std::string NcclGroup::Lacks(Device* device, const DeviceCollective& collective) {
  if (collective.bytes == 0 && state() == State::kNew) {
    return "this rank has no elements yet, by which its GPU would be known";
  }
  if (!Packer::Pays(collective)) return "";
  bool needed = Packer::Needed(collective);
  std::string why = CannotPack(static_cast<CudaDevice*>(device));
  if (!why.empty()) return needed ? why : "";
  size_t size = Info(collective.dtype).size;
  for (const Span& span : collective.spans) {
    auto bits = reinterpret_cast<uintptr_t>(span.in) | reinterpret_cast<uintptr_t>(span.out);
    if (span.count > 0 && bits % size != 0) return "a tensor is not aligned to its elements";
  }
  std::shared_ptr<Packer> packer;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    packer = packer_;
  }
  bool fits = packer == nullptr || packer->Fits(collective);
  return fits || !needed ? "" : "it has too many tensors to be packed";
}

std::string NcclGroup::CannotPack(CudaDevice* device) {
  std::string why;
  if (PackKernels::Find(device, options_.kernels, &why) == nullptr) return why;
  std::lock_guard<std::mutex> lock(mutex_);
  Status status = TakePackMemory(device);
  return status.ok() ? "" : "no memory of the GPU is left to pack tensors: " + status.message();
}

// Once the ranks have connected none is taken.
Status NcclGroup::TakePackMemory(CudaDevice* device) {
  bool connected = runner_ != nullptr;
  if (packer_ != nullptr || (pack_device_ == device && pack_memory_.table != nullptr)) return {};
  if (connected) return {Code::kSystem, "there was none when the ranks connected"};
  PackMemory memory;
  memory.wire_bytes = options_.pack_bytes;
  Status status = device->Allocate(memory.wire_bytes, &memory.wire);
  if (status.ok()) status = device->Allocate(PackTables::kMostBytes, &memory.table);
  if (!status.ok()) return status;
  pack_memory_ = std::move(memory);
  pack_device_ = device;
  return {};
}

DeviceIntroduction NcclGroup::Introduce(Device* device, bool first) {
  DeviceIntroduction own{};
  std::string why;
  const NcclLibrary* library = Library(&why);
  if (library == nullptr) {
    Copy(why, own.problem);
    return own;
  }
  own.version = library->version;
  auto* gpu = static_cast<CudaDevice*>(device);
  why = CannotPack(gpu);  // before the ranks connect, so that all of them know
  own.packs = why.empty() ? 1 : 0;
  Status status = gpu->Uuid(own.device);
  AddHostId(own.device);
  CudaDevice::Current current(gpu);
  if (status.ok()) status = current.status();
  if (status.ok() && first) {
    NcclUniqueId id{};
    NcclResult result = library->GetUniqueId(&id);
    if (result != kNcclSuccess) status = library->Failure("ncclGetUniqueId", result, nullptr);
    std::memcpy(own.id, id.internal, sizeof own.id);
  }
  Copy(status.message(), own.problem);
  return own;
}

void NcclGroup::Connect(Device* device, int rank, const std::vector<DeviceIntroduction>& all,
                        Done done) {
  NcclRunner::Membership membership{};
  std::memcpy(membership.id.internal, all[0].id, sizeof all[0].id);
  membership.size = static_cast<int>(all.size());
  membership.rank = rank;
  membership.connect_seconds = options_.connect_seconds;
  std::shared_ptr<NcclRunner> runner;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    device_ = static_cast<CudaDevice*>(device);
    WarnOfGpu0(*library_, *device_);
    std::string ignored;
    bool packs =
        std::all_of(all.begin(), all.end(), [](const auto& one) { return one.packs == 1; });
    if (packs) {
      auto* kernels = PackKernels::Find(device_, options_.kernels, &ignored);
      packer_ = std::make_shared<Packer>(device_, kernels, rank, pack_memory_);
    }
    pack_memory_ = {};
    runner = runner_ = std::make_shared<NcclRunner>(library_, device_, membership, packer_);
  }
  runner->Start(std::move(done));
}

void NcclGroup::Submit(DeviceCollective collective, std::function<void()> computed, Done done) {
  std::shared_ptr<NcclRunner> runner;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    runner = runner_;
  }
  runner->Submit(std::move(collective), std::move(computed), std::move(done));
}

void NcclGroup::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  pack_memory_ = {};
  if (runner_ == nullptr || stuck_ || runner_->Abort(kAbortSeconds)) return;
  stuck_ = true;
  LogError("NCCL has not stopped " + std::to_string(static_cast<int>(kAbortSeconds)) +
           " s after it was told to");
}

void NcclGroup::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (runner_ == nullptr || runner_->Close(kCloseSeconds)) return;
  LogWarning("NCCL has not ended within " + std::to_string(static_cast<int>(kCloseSeconds)) + " s");
}

DeviceGroupStats NcclGroup::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  bool ready = runner_ != nullptr && state() == State::kReady;
  return ready ? runner_->stats() : DeviceGroupStats();
}

}  // namespace smddp
