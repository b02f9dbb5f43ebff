// One table per group: which member becomes which column.
#include "trace/columns.h"

#include <utility>

namespace haiprof::trace {
namespace {

constexpr Field kSpans[] = {
    {"start", Kind::time, Member::time},
    {"duration", Kind::length, Member::duration},
    {"category", Kind::text, Member::category},
    {"name", Kind::text, Member::name},
    {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread},
    {"correlation", Kind::identity, Member::correlation},
    {"external", Kind::identity, Member::external},
    {"sequence", Kind::number, Member::sequence},
    {"forward_thread", Kind::count, Member::forward_thread},
    {"shapes", Kind::json, Member::shapes},
    {"types", Kind::json, Member::types},
    {"inputs", Kind::json, Member::inputs},
    {"stack", Kind::text, Member::stack},
    {"python_id", Kind::count, Member::python_id},
    {"python_parent", Kind::count, Member::python_parent},
    {"module", Kind::count, Member::module},
    {"arguments", Kind::json, Member::arguments},
};

constexpr Field kActivities[] = {
    {"start", Kind::time, Member::time},
    {"duration", Kind::length, Member::duration},
    {"category", Kind::text, Member::category},
    {"name", Kind::text, Member::name},
    {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread},
    {"device", Kind::count, Member::device},
    {"stream", Kind::count, Member::stream},
    {"context", Kind::count, Member::context},
    {"correlation", Kind::identity, Member::correlation},
    {"external", Kind::identity, Member::external},
    {"queued", Kind::number, Member::queued},
    {"grid_x", Kind::dimensions, Member::grid},
    {"grid_y", Kind::dimensions},
    {"grid_z", Kind::dimensions},
    {"block_x", Kind::dimensions, Member::block},
    {"block_y", Kind::dimensions},
    {"block_z", Kind::dimensions},
    {"registers", Kind::count, Member::registers},
    {"shared_memory", Kind::count, Member::shared_memory},
    {"bytes", Kind::number, Member::bytes},
    {"bandwidth", Kind::real, Member::bandwidth},
    {"blocks_per_sm", Kind::real, Member::blocks_per_sm},
    {"warps_per_sm", Kind::real, Member::warps_per_sm},
    {"occupancy", Kind::real, Member::occupancy},
    {"graph", Kind::count, Member::graph},
    {"graph_node", Kind::identity, Member::graph_node},
    {"kind", Kind::text, Member::kind},
    {"sync_kind", Kind::text, Member::sync_kind},
    {"wait_stream", Kind::count, Member::wait_stream},
    {"wait_event", Kind::number, Member::wait_event},
    {"wait_correlation", Kind::identity, Member::wait_correlation},
    {"arguments", Kind::json, Member::arguments},
};

constexpr Field kCollectives[] = {
    {"side", Kind::flag},
    {"row", Kind::flag},
    {"op", Kind::text, Member::collective},
    {"group", Kind::json, Member::group},
    {"group_description", Kind::json, Member::group_text},
    {"group_id", Kind::json, Member::group_id},
    {"group_size", Kind::count, Member::group_size},
    {"ranks", Kind::json, Member::ranks},
    {"rank", Kind::count, Member::rank},
    {"type", Kind::json, Member::element_type},
    {"elements_in", Kind::number, Member::elements_in},
    {"elements_out", Kind::number, Member::elements_out},
    {"splits_in", Kind::json, Member::splits_in},
    {"splits_out", Kind::json, Member::splits_out},
    {"first_rank", Kind::number, Member::first_rank},
    {"rank_stride", Kind::number, Member::rank_stride},
    {"source_rank", Kind::number, Member::source_rank},
    {"target_rank", Kind::number, Member::target_rank},
};

constexpr Field kAllocations[] = {
    {"time", Kind::time, Member::time},
    {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread},
    {"device_type", Kind::number, Member::device_type},
    {"device", Kind::count, Member::device_id},
    {"address", Kind::identity, Member::address},
    {"bytes", Kind::number, Member::bytes},
    {"total_allocated", Kind::number, Member::allocated},
    {"total_reserved", Kind::number, Member::reserved},
};

constexpr Field kInstants[] = {
    {"time", Kind::time, Member::time},      {"category", Kind::text, Member::category},
    {"name", Kind::text, Member::name},      {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread}, {"arguments", Kind::json, Member::arguments},
};

constexpr Field kFlows[] = {
    {"time", Kind::time, Member::time},      {"category", Kind::text, Member::category},
    {"name", Kind::text, Member::name},      {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread}, {"side", Kind::flag},
    {"id", Kind::identity, Member::id},
};

constexpr Field kCounters[] = {
    {"time", Kind::time, Member::time},
    {"name", Kind::text, Member::name},
    {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread},
    {"id", Kind::label, Member::id},
    {"instance", Kind::flag},
    {"value", Kind::real},
};

constexpr Field kMetadata[] = {
    {"name", Kind::text, Member::name},
    {"process", Kind::label, Member::process},
    {"thread", Kind::label, Member::thread},
    {"arguments", Kind::json, Member::arguments},
};

struct Layout {
  std::string_view name;
  std::span<const Field> fields;
};

constexpr Layout kLayouts[] = {
    {"spans", kSpans},
    {"activities", kActivities},
    {"collectives", kCollectives},
    {"allocations", kAllocations},
    {"instants", kInstants},
    {"flows", kFlows},
    {"counters", kCounters},
    {"metadata", kMetadata},
};
static_assert(std::size(kLayouts) == kGroups);

AnyColumn column_for(Kind kind) {
  switch (kind) {
    case Kind::time:
    case Kind::length:
    case Kind::number:
    case Kind::identity:
      return Column<std::int64_t>(kNoNumber);
    case Kind::real:
      return Column<double>(std::numeric_limits<double>::quiet_NaN());
    default:
      return Column<std::uint32_t>(kNoText);
  }
}

}  // namespace

std::string_view name_of(Group group) noexcept {
  return kLayouts[static_cast<std::size_t>(group)].name;
}

Rows::Rows(Group group) : fields_(kLayouts[static_cast<std::size_t>(group)].fields) {
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    columns_.push_back(column_for(fields_[i].kind));
    if (fields_[i].member == Member::none) continue;
    column_of_[static_cast<std::size_t>(fields_[i].member)] = static_cast<std::uint8_t>(i);
    members_ |= bit(fields_[i].member);
  }
}

std::vector<Rows::Taken> Rows::take() {
  std::vector<Taken> taken;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    AnyValues values =
        std::visit([this](auto& column) { return AnyValues(column.take(rows_)); }, columns_[i]);
    if (std::visit([](const auto& column) { return column.empty(); }, values)) continue;
    taken.push_back({fields_[i].name, std::move(values)});
  }
  rows_ = 0;
  return taken;
}

}  // namespace haiprof::trace
