//! What is said where events can't be had.

use std::fs;

use super::{error, only};
use crate::fixture::{Fixture, amd, intel_hybrid};

#[test]
fn errors_say_what_there_is() {
    let machine = intel_hybrid();
    for (text, message) in [
        ("cycels", "no event `cycels` on this machine; did you mean cycles?"),
        ("mem-load", "no event `mem-load` on this machine; did you mean mem-loads?"),
        ("zzz", "no event `zzz` on this machine"),
        ("..", "no event `..` on this machine"),
        (
            "cpu_cor1/event=1/",
            "no PMU `cpu_cor1` on this machine; did you mean cpu_core or cpu_atom?",
        ),
        (
            "cpu_atom/evnt=1/",
            "`cpu_atom` has no term `evnt`, only cmask, edge, event, inv, ldlat, offcore_rsp, umask, \
             config, config1, config2, config3, name, period, freq; did you mean event?",
        ),
        (
            "power/event=1,umask=1/",
            "`power` has no term `umask`, only event, config, config1, config2, config3, name, period, freq",
        ),
        (
            "cycles/umask=1/",
            "`cycles` is a whole event: it takes no other terms that say what is counted",
        ),
        (
            "cs/umask=1/",
            "`context-switches` has no term `umask`, only name, period, freq, config1, config2, config3",
        ),
        (
            "cpu_core/event=1,call-graph=fp/",
            "the term `call-graph` is not supported; of those that set no field, there are name, period, freq",
        ),
        ("cpu_core/event=0x100/", "`event=0x100` is too wide: `event` has 8 bits, so at most 0xff"),
        ("cpu_core/inv=2/", "`inv=2` is too wide: `inv` has 1 bit, so at most 0x1"),
        ("kprobe/retprobe/", "`kprobe` needs a place, as in `kprobe:FUNCTION`"),
        ("uprobe//", "`uprobe` needs a place, as in `uprobe:PATH:FUNCTION`"),
        ("cpu_core/event/", "`event` needs a value of up to 8 bits, as in `event=1`"),
        ("cpu_core/event=x/", "`event=x` has to be a number"),
        ("cycles/period=0/", "`period=0` has to be a number larger than 0"),
        ("cycles/freq/", "`freq` has to be a number larger than 0"),
        ("cycles/name/", "`name` has to be a text, as in `name=x`"),
        (
            "cs/period=1,freq=1/",
            "`context-switches/period=1,freq=1/` has both a period and a frequency; give one",
        ),
    ] {
        assert_eq!(error(&machine, text), message, "{text}");
    }
    let older = amd().pmu("cpu", 4, &[("caps/max_precise", "2")]);
    fs::remove_dir_all(older.path().join("sys/bus/event_source/devices/ibs_op")).unwrap();
    assert_eq!(
        error(&older, "cycles:ppp"),
        "`cycles:ppp` asks for precision 3, `cpu` has at most 2; give `pp`"
    );
}

#[test]
fn a_parameter_has_to_be_given() {
    let power = [
        ("format/request", "config:0-31"),
        ("format/phys_processor_idx", "config1:0-31"),
        ("events/dtbp_ptitc", "request=0x10,phys_processor_idx=?"),
    ];
    let machine = Fixture::new().pmu("hv_gpci", 9, &power);
    let attr = only(&machine, "hv_gpci/dtbp_ptitc,phys_processor_idx=0x2/");
    assert_eq!((attr.config, attr.config1), (0x10, 2));
    assert_eq!(
        error(&machine, "hv_gpci/dtbp_ptitc/"),
        "`dtbp_ptitc` needs a value for `phys_processor_idx`, as in `dtbp_ptitc,phys_processor_idx=1`"
    );
}

#[test]
fn files_that_are_not_as_expected_are_named() {
    let large = "x".repeat(100_000);
    let pmu = [
        ("format/odd", "config9:0-7"),
        ("events/odd", "event=,"),
        ("format/large", large.as_str()),
        ("format/event", "config:0-7"),
        ("events/scaled", "event=1"),
        ("events/scaled.scale", "inf"),
    ];
    let machine = Fixture::new().pmu("pmu", 9, &pmu);
    let at = machine.path().join("sys/bus/event_source/devices/pmu");
    for (text, file, message) in [
        ("pmu/odd=1/", "format/odd", "`config9:0-7` is no field known here"),
        ("pmu/odd/", "events/odd", "`event=,`, column 7: expected a value, found `,`"),
        ("pmu/large=1/", "format/large", "it is too large"),
        ("pmu/scaled/", "events/scaled.scale", "it is not finite"),
    ] {
        let path = at.join(file);
        assert_eq!(
            error(&machine, text),
            format!("{} is not as expected: {message}", path.display())
        );
    }
}
