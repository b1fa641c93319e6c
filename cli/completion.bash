# Completion of dofla's commands, options and values in bash, read from what --help says: the options
# that it offers are those of the dofla that is called.
_dofla() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} i help command=
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    elif [[ ${COMP_WORDS[i]} == --threads ]]; then
      ((++i)) # its value is not the command
    fi
  done
  help=$("$1" $command --help 2>/dev/null) || return 0
  if [[ $before == --* && $'\n'$help =~ $'\n  '([^ ]*,)?"$before"(,[^ ]*)?' '[A-Z]+:'{'([^}]*)'}' ]]; then
    COMPREPLY=($(compgen -W "${BASH_REMATCH[3]//,/ }" -- "$word"))
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$(sed -n 's/^  \(-[^ ]*\).*/\1/p' <<<"$help" | tr , '\n')" -- "$word"))
  elif [[ -z $command ]]; then
    COMPREPLY=($(compgen -W "$(sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' <<<"$help")" -- "$word"))
  fi
}
complete -o bashdefault -o default -F _dofla dofla
