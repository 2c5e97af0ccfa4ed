"""`drop completion`: a script with which a shell completes the commands of `drop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from droprl.cli.options import parse
from droprl.terminal import say

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Completion:
    """Print a script that makes a shell complete the commands of drop, and files after them.

    bash: add `eval "$(drop completion bash)"` to ~/.bashrc. zsh: add `eval "$(drop completion zsh)"` to ~/.zshrc, below
    compinit. fish: `drop completion fish > ~/.config/fish/completions/drop.fish`.
    """

    shell: Annotated[tyro.conf.Positional[Shell], tyro.conf.arg(metavar="SHELL")]
    """bash, zsh or fish."""


def completion(words: list[str], commands: Sequence[str]) -> None:
    """`commands` are all commands, such as `train` and `data info`."""
    shell = parse(Completion, "completion", words).shell
    first = sorted({name.split()[0] for name in (*commands, "help")})
    after: dict[str, list[str]] = {"help": [name for name in first if name != "help"], "completion": ["bash", "zsh"]}
    after["completion"].append("fish")
    for name in commands:
        if " " in name:
            group, part = name.split()
            after.setdefault(group, []).append(part)
    after["bench"] = ["list", "pack"]
    say(*{"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](first, after).splitlines())


def _bash(first: list[str], after: dict[str, list[str]]) -> str:
    cases = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{" ".join(parts)}" -- "$word")) ;;' for name, parts in after.items()
    )
    return f"""_drop() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(first)}" -- "$word"))
  elif [ "$COMP_CWORD" -eq 2 ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
}}
complete -o bashdefault -o default -F _drop drop"""


def _zsh(first: list[str], after: dict[str, list[str]]) -> str:
    cases = "\n".join(f"      {name}) compadd -- {' '.join(parts)} ;;" for name, parts in after.items())
    return f"""_drop() {{
  if (( CURRENT == 2 )); then
    compadd -- {" ".join(first)}
  elif (( CURRENT == 3 )); then
    case "${{words[2]}}" in
{cases}
      *) _files ;;
    esac
    [[ "${{words[2]}}" == bench ]] && _files
  else
    _files
  fi
}}
compdef _drop drop"""


def _fish(first: list[str], after: dict[str, list[str]]) -> str:
    lines = [f"complete -c drop -n __fish_use_subcommand -f -a '{' '.join(first)}'"]
    for name, parts in after.items():
        listed = " ".join(parts)
        lines.append(
            f"complete -c drop -n '__fish_seen_subcommand_from {name}; and not __fish_seen_subcommand_from {listed}' "
            f"-f -a '{listed}'"
        )
    return "\n".join(lines)
