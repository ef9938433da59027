#!/bin/sh
# Strips a program as Fedora's build does (`add_minidebug` in find-debuginfo of debugedit): the names
# of functions that are not exported go to .gnu_debugdata.
set -e
program=$1
nm -D "$program" --format=posix --defined-only | awk '{ print $1 }' | sort > "$program.exported"
nm "$program" --format=posix --defined-only |
    awk '{ if ($2 == "T" || $2 == "t" || $2 == "D") print $1 }' | sort > "$program.functions"
comm -13 "$program.exported" "$program.functions" > "$program.keep"
objcopy --only-keep-debug "$program" "$program.mini"
objcopy -S --remove-section .comment --keep-symbols="$program.keep" "$program.mini"
xz --force "$program.mini"
strip --strip-all "$program"
objcopy --add-section .gnu_debugdata="$program.mini.xz" "$program"
