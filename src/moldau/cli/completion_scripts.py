"""The completion scripts. They pass the words of the command line to `moldau complete` and show its candidates."""

BASH = r"""# Completion of moldau for bash. Load it with: source <(moldau completion bash)
_moldau() {
    local program=$1 word last=-1 index current prefix kind="" line value
    local -a words=()
    for ((index = 1; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        # Bash also splits words at : and =, which are parts of addresses, group names and options here.
        if ((last >= 0)) && [[ $word == [:=]* || ${words[last]} == *[:=] ]]; then
            words[last]+=$word
        else
            words[++last]=$word
        fi
    done
    current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == [:=] ]] && current=""
    prefix=${words[last]%"$current"}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $kind ]]; then
            kind=$line
            continue
        fi
        value=${line%%$'\t'*}
        # What bash has split off stays on the line.
        value=${value#"$prefix"}
        [[ $current == [\"\']* ]] || printf -v value %q "$value"
        COMPREPLY+=("$value")
    done < <("$program" complete bash -- "${words[@]}" 2>/dev/null)
    if [[ $kind == files ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r line; do
            COMPREPLY+=("$line")
        done < <(compgen -f -- "$current")
    fi
}
complete -F _moldau moldau
"""

ZSH = r"""#compdef moldau
# Completion of moldau for zsh. Load it after compinit with: source <(moldau completion zsh)
_moldau() {
    local line value
    local -a lines described
    lines=("${(@f)$("$words[1]" complete zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $lines[1] == files ]]; then
        _files
        return
    fi
    for line in "${(@)lines[2,-1]}"; do
        value=${line%%$'\t'*}
        described+=("${value//:/\\:}:${line#*$'\t'}")
    done
    _describe -V moldau described
}
if [[ $funcstack[1] == _moldau ]]; then
    _moldau "$@"
else
    compdef _moldau moldau
fi
"""

FISH = r"""# Completion of moldau for fish, for ~/.config/fish/completions/moldau.fish
function __moldau_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] complete fish -- $words[2..-1] "$current" 2>/dev/null)
    if test "$lines[1]" = files
        __fish_complete_path "$current"
    else if test (count $lines) -gt 1
        printf '%s\n' $lines[2..-1]
    end
end
complete -c moldau -f -a '(__moldau_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
