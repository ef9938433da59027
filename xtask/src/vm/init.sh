#!/bin/busybox sh
# The first process of an emulated test machine: run the tests, tell the host, power off.

/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /tmp /root && mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp
ifconfig lo 127.0.0.1 up
# Emulated interrupts take so long that the kernel would throttle sampling.
echo 0 > /proc/sys/kernel/perf_cpu_time_max_percent

# While one CPU patches the kernel's code, QEMU's other one can keep a translation of what stood there in
# between, and the kernel dies of a breakpoint (`Oops: int3`), or that CPU counts nothing. It patches where page faults,
# switches and tracepoints are counted when the first such event is opened. So these are open before anything runs.
mkfifo /tmp/held
mount -t tracefs tracefs /sys/kernel/tracing
/fixtures/held_events-c > /tmp/held &
read -r held < /tmp/held
umount /sys/kernel/tracing

export PROFILER_TEST_AGENT=/profiler PROFILER_TEST_FIXTURES=/fixtures
# This machine is made to be broken.
export PROFILER_TEST_HOTPLUG=1 PROFILER_TEST_EMULATED=1
echo "@@ booted"
# What a test says comes at once, so that one that hangs has said why others failed.
# Some of them by the kernel's command line for this machine, or for all.
tests=$(echo "$tests" | tr , ' ')
/kernel-tests --ignored --nocapture --test-threads=1 ${tests:-$(cat /filter)}
echo "@@ tests ended with $?"

if [ ! -s /filter ]; then
    echo "@@ doctor"
    /profiler doctor
    echo "@@ doctor.json"
    /profiler doctor --json

    echo "@@ program"
    /profiler -vv -d 100ms 2>&1 > /dev/null | grep 'eBPF program'

    # Both CPUs busy for five seconds at 99 Hz: 990 samples, if none were missed.
    /fixtures/chain-c & first=$!
    /fixtures/chain-c & second=$!
    /profiler -d 5 -f json > /tmp/samples 2> /dev/null
    kill $first $second
    echo "@@ summary"
    tail -n 1 /tmp/samples
fi
echo "@@ end"
poweroff -f
