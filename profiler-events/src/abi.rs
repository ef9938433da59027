//! Numbers of the kernel's interface, from `<linux/perf_event.h>` and `<linux/hw_breakpoint.h>`:
//! <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.

/// `perf_event_attr.type` of events that each PMU of a CPU has under the same number.
pub const PERF_TYPE_HARDWARE: u32 = 0;
/// `perf_event_attr.type` of events that the kernel counts.
pub const PERF_TYPE_SOFTWARE: u32 = 1;
/// `perf_event_attr.type` of tracepoints: `config` is the tracepoint's id.
pub const PERF_TYPE_TRACEPOINT: u32 = 2;
/// `perf_event_attr.type` of cache events.
pub const PERF_TYPE_HW_CACHE: u32 = 3;
/// `perf_event_attr.type` of events by the number that the processor has for them.
pub const PERF_TYPE_RAW: u32 = 4;
/// `perf_event_attr.type` of breakpoints.
pub const PERF_TYPE_BREAKPOINT: u32 = 5;

/// Where `config` of the types hardware and cache has the type of the PMU that is to count, on machines
/// with CPUs of several kinds.
pub const PERF_PMU_TYPE_SHIFT: u32 = 32;

/// `perf_event_attr.bp_type`: a read.
pub const HW_BREAKPOINT_R: u32 = 1;
/// `perf_event_attr.bp_type`: a write.
pub const HW_BREAKPOINT_W: u32 = 2;
/// `perf_event_attr.bp_type`: an instruction that is executed.
pub const HW_BREAKPOINT_X: u32 = 4;
