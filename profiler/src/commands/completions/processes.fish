
# Processes for -p.
complete -c profiler -n "__fish_profiler_needs_command" -s p -l pid -x -a "(__fish_complete_pids)"
complete -c profiler -n "__fish_profiler_using_subcommand agent" -s p -l pid -x -a "(__fish_complete_pids)"
complete -c profiler -n "__fish_profiler_using_subcommand record" -s p -l pid -x -a "(__fish_complete_pids)"
complete -c profiler -n "__fish_profiler_using_subcommand serve" -s p -l pid -x -a "(__fish_complete_pids)"
complete -c profiler -n "__fish_profiler_using_subcommand stat" -s p -l pid -x -a "(__fish_complete_pids)"
complete -c profiler -n "__fish_profiler_using_subcommand top" -s p -l pid -x -a "(__fish_complete_pids)"
