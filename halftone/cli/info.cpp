// halftone info: this program, this machine, and what each device does with each format.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/runtime/devices.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

ordered_json formats_json(const DeviceInfo& device) {
  ordered_json out;
  for (const Format& format : all_formats()) {
    const FormatSupport support = format_support(device, format);
    out[std::string(format.name)] = {{"support", to_string(support.support)}, {"why", support.why}};
  }
  return out;
}

void print_formats(const DeviceInfo& device) {
  for (const Format& format : all_formats()) {
    const FormatSupport support = format_support(device, format);
    fmt::print("  {:<16} {:<12} {}\n", format.name, to_string(support.support), support.why);
  }
}

void print_as_json(const CpuInfo& cpu, const GpuList& list) {
  ordered_json out;
  out["version"] = version();
  out["backends"] = backends();
  out["cpu"] = {{"name", cpu.name},
                {"threads", cpu.threads},
                {"memory_bytes", cpu.memory_bytes},
                {"features", cpu.features},
                {"kernels", cpu.kernels},
                {"formats", formats_json(cpu_device())}};
  out["driver"] = list.driver;
  out["gpu_note"] = list.note;
  out["gpus"] = ordered_json::array();
  for (const DeviceInfo& gpu : list.gpus) {
    out["gpus"].push_back({{"index", gpu.device.index},
                           {"name", gpu.name},
                           {"capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                           {"memory_bytes", gpu.memory_bytes},
                           {"formats", formats_json(gpu)}});
  }
  print_json(out);
}

void print_as_text(const CpuInfo& cpu, const GpuList& list) {
  fmt::print("halftone {}  (runs on: {})\n\n", version(), fmt::join(backends(), ", "));
  fmt::print("cpu  {}, {} threads, {}\n", cpu.name, cpu.threads, human_bytes(cpu.memory_bytes));
  fmt::print("     {}\n     kernels: {}\n", fmt::join(cpu.features, " "), cpu.kernels);
  print_formats(cpu_device());
  for (const DeviceInfo& gpu : list.gpus) {
    fmt::print("\n{}  {}, sm_{}{}, {}, driver CUDA {}\n", gpu.device.str(), gpu.name, gpu.major,
               gpu.minor, human_bytes(gpu.memory_bytes), list.driver);
    print_formats(gpu);
  }
  if (list.gpus.empty()) fmt::print("\ngpu  none: {}\n", list.note);
  if (!list.gpus.empty()) {
    fmt::print("\nThis version computes on the CPU; for a GPU this is what its hardware can do.\n");
  }
}

}  // namespace

void add_info(CLI::App& app, const Context&) {
  CLI::App* command = app.add_subcommand("info", "What this machine can run, and how");
  command->footer(
      "Lists the CPU and every GPU, and for each one which formats are\n"
      "  native       the hardware multiplies in them\n"
      "  emulated     the same numbers through wider arithmetic\n"
      "  unavailable  not at all");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object instead of text");
  command->callback([json] {
    const CpuInfo cpu = cpu_info();
    const GpuList list = list_gpus();
    *json ? print_as_json(cpu, list) : print_as_text(cpu, list);
  });
}

}  // namespace halftone::cli
