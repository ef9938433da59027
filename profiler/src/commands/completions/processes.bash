
# Processes for -p: their ids, and their names as far as these are plain words. Anybody chooses the name of a process,
# and what is completed stands on the command line.
_profiler_processes() {
    local folder name
    for folder in /proc/[0-9]*; do
        { IFS= read -r name < "${folder}/comm"; } 2> /dev/null || continue
        [[ ${name} =~ ^[A-Za-z0-9_][A-Za-z0-9_.+-]*$ ]] || name=""
        printf '%s\n' "${folder#/proc/}${name:+  (${name})}" ${name}
    done | sort -u
}

_profiler_or_processes() {
    local cur="${COMP_WORDS[COMP_CWORD]}" word
    case "${COMP_WORDS[COMP_CWORD-1]}" in
        -p | --pid) ;;
        *) _profiler "$@"; return ;;
    esac
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        # What follows is a command with options of its own.
        [[ ${word} == -- ]] && { _profiler "$@"; return; }
    done
    COMPREPLY=()
    while IFS= read -r word; do
        [[ ${word} == "${cur}"* ]] && COMPREPLY+=("${word}")
    done < <(_profiler_processes)
    # The name beside an id is to be seen, and not to be typed.
    [[ ${#COMPREPLY[@]} -eq 1 ]] && COMPREPLY=("${COMPREPLY[0]%%  (*}")
    return 0
}

complete -F _profiler_or_processes -o bashdefault -o default profiler
