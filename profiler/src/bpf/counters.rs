//! Reading what the eBPF program has counted.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{
    Ebpf,
    maps::{Map, MapData, PerCpuArray},
};
use profiler_common::counter::{Counter, Counters};
use profiler_profile::{cpus::CpuList, ledger::counters::PerCpuCounters};

use super::load::damaged;
use crate::{
    error::{Error, Result},
    kernel,
};

/// The program's map of counters. To read it opens no file, so that it works when none can be opened any
/// more.
pub struct CounterMap {
    map: MapData,
    /// The kernel has a value for each of them, in this order.
    possible: CpuList,
}

/// What `BPF_MAP_LOOKUP_ELEM` takes:
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h>, `union bpf_attr`.
#[repr(C)]
struct Lookup {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;

impl CounterMap {
    /// Takes the map of the loaded object.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let map = ebpf.take_map("COUNTERS");
        // Its values have to be of the size that is read.
        let fits =
            map.as_ref().is_some_and(|map| PerCpuArray::<_, Counters>::try_from(map).is_ok());
        match map {
            Some(Map::PerCpuArray(map)) if fits => {
                Ok(Self { map, possible: kernel::cpus("possible")? })
            }
            _ => Err(damaged("no per-CPU array `COUNTERS` of this agent's counters")),
        }
    }

    /// Reads the counters of a source on all CPUs.
    pub fn read(&self, slot: u32) -> Result<PerCpuCounters> {
        let mut values = vec![[0_u64; Counter::COUNT]; self.possible.len()];
        self.lookup(slot, &mut values)
            .map_err(|error| Error::system("cannot read the program's counters", error))?;
        let mut counters = PerCpuCounters::default();
        for (cpu, value) in self.possible.iter().zip(values) {
            counters.set(cpu, value);
        }
        Ok(counters)
    }

    fn lookup(&self, key: u32, values: &mut [Counters]) -> io::Result<()> {
        let fd = self.map.fd().as_fd().as_raw_fd();
        let attr = Lookup {
            map_fd: u32::try_from(fd).map_err(io::Error::other)?,
            padding: 0,
            key: (&raw const key) as u64,
            value: values.as_mut_ptr() as u64,
            flags: 0,
        };
        let bytes = size_of_val(&attr);
        // SAFETY: the kernel reads the key and writes a value of `Counters`' size, which is a multiple of
        // eight, for each possible CPU: there are as many in `values`. All outlive the call.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw const attr, bytes) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
