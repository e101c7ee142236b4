_vramscope() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" each known=""
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$each" in -*) ;; *) command="$each"; break ;; esac
  done
  case "$command $before" in
@choices@
  *) case "$command" in
    "") known="@commands@" ;;
@options@
    esac
    if [[ -n "$command" && "$word" != -* ]]; then known=""; fi ;;
  esac
  COMPREPLY=($(compgen -W "$known" -- "$word"))
}
complete -o default -F _vramscope vramscope
