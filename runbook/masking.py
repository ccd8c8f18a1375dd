"""Secrets in text made unreadable: keys, tokens and passwords that a log shows beside a failure.

Logs print their environment, their command line and their configuration, and an excerpt of one goes into a terminal, a
page, a ticket. What is masked is the value alone, so that a reader still sees which secret stood there. A name decides
with the shape of its value ("token: 4096" is a count); some tokens are known by their own shape. Shapes are those that
their issuers publish: GitHub, GitLab, Hugging Face, OpenAI, Anthropic, AWS, Google, Slack, NVIDIA, npm, PyPI,
Databricks, our own (service/tokens.py), RFC 7519 (JWT), RFC 3986 (user information of a URL), RFC 7468 (PEM).

Of a command line the program decides: `-p` is a password to sshpass and a port to `docker run`. Which options and
words of which program hold a secret is a table (`_PROGRAMS`); a new one is a line in it.

None of the expressions repeats a repetition, so a hostile line costs linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MASK = "***"

_HINTS = (
    "token", "secret", "passw", "passphrase", "pwd", "key", "credential", "bearer", "authorization", "://", "eyj",
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "xox", "akia", "asia", "aiza",
    "ya29.", "npm_", "pypi-", "dapi", "nvapi-", "rbk_", "_jwt", "sig=", "pass", "_auth=", "_pat=", "-u ", "login",
    "mysql", "mariadb", "redis-cli", "valkey-cli", "openssl", "curl", "ldap", "mongo", "sqlcmd", "7z", "zip", "lftp",
    "smbclient", "configure", "alias", "consul", "nomad", "doctl", "twine", "http", "mc", "useradd", "hvs.", "r8_",
    "sk_live_", "gsk_", "dckr_pat_", "_pw", "-pw", "-stdin", "<<<", "wandb=", "swanlab=", "clearml-init",
    "pw", "tok=", "_tok", "pat=", "_api", "_pat", "auth", "unseal",
)
"""Without one of these, in capitals or not, there is nothing to mask: most lines are done here. Plain words, as an
expression that disregards capitals takes twenty times as long."""

_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        (?P<kept>hf_|gh[pousr]_|github_pat_|glpat-|sk-(?:ant-|proj-)?|xox[abeprs]-|AKIA|ASIA|AIza|ya29\.|npm_|pypi-
          |dapi|nvapi-|rbk_|dckr_pat_|hvs\.|r8_|sk_live_|gsk_)
        (?:(?<=hf_)[A-Za-z0-9]{16,400}|(?<=gh._)[A-Za-z0-9]{16,400}|(?<=pat_)\w{20,400}|(?<=glpat-)[\w-]{16,400}
          |(?<=[kt]-)[\w-]{20,400}|(?<=proj-)[\w-]{20,400}|(?<=xox.-)[\w-]{10,400}|(?<=A[KS]IA)[0-9A-Z]{12,124}
          |(?<=AIza)[\w-]{30,400}|(?<=ya29\.)[\w.-]{20,400}|(?<=npm_)[A-Za-z0-9]{30,400}|(?<=pypi-)[\w-]{40,400}
          |(?<=dapi)[0-9a-f]{24,64}|(?<=nvapi-)[\w-]{20,400}
          |(?<=rbk_)[\w-]{20,400}|(?<=hvs\.)[\w-]{20,400}|(?<=r8_)[A-Za-z0-9]{30,400}|(?<=live_)[A-Za-z0-9]{16,400}
          |(?<=gsk_)[A-Za-z0-9]{30,400})
      | (?P<jwt>eyJ)[\w-]{8,4000}\.[\w-]{8,8000}(?:\.[\w-]{0,2000})?
    )""",
    re.VERBOSE,
)

_NAMED = re.compile(
    r"""(?P<name>
        (?i:(?P<password>password|(?-i:(?<!NO))passwd|passphrase|pwd|(?-i:(?<=[A-Z0-9]_)PW\b))
          | (?P<key>(?:api|access|secret|private|auth|account|encryption|signing|license|storage|master|service|wandb)
              [_-]?key(?:[_-]?id)?|secret|credentials?|(?-i:(?<=_)PASS)
              |(?-i:(?<![\w-])(?:key|WANDB|SWANLAB))
                (?=\\?["']?[ \t]{0,3}[:=][ \t]{0,3}\\?["']?[0-9a-f]{32,40}(?![0-9A-Za-z]))
              |(?-i:(?<![\w-])PW(?==))
              |(?-i:(?<![\w-])(?:TOK|PAT)|(?<=[A-Z0-9]_)(?:API|TOK))
                (?=\\?["']?[ \t]{0,3}[:=][ \t]{0,3}\\?["']?(?=[A-Za-z]{0,400}[0-9])[A-Za-z0-9]{20,400}(?![\w/-])))
          | (?P<token>token|_jwt)
          | (?-i:(?<=[A-Z0-9]_)(?P<variable>KEY|AUTH|PAT)))
    )
    (?P<between>(?:\\?["'])?\]?[ \t]{0,3}(?:=>|[:=])[ \t]{0,3}(?P<quote>[bfru]?\\?["'])?)
    (?P<value>(?(quote)[^"'\\\n]{1,4000}|[^\s"'\\,;&)}\]>]{1,4000}))""",
    re.VERBOSE,
)
_WORD = re.compile(
    r"""(?P<name>
        (?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))
        (?i:(?P<secret>pass|passcode|pw|unseal)|(?P<auth>auth)|(?P<key>key|pat|tok)))
    (?P<between>(?:\\?["'])?\]?[ \t]{0,3}(?:=>|[:=])[ \t]{0,3}(?P<quote>[bfru]?\\?["'])?)
    (?P<value>(?(quote)[^"'\\\n]{1,4000}|[^\s"'\\,;&)}\]>]{1,4000}))""",
    re.VERBOSE,
)
"""The last word of a name, in any case: db_pass, tracker-auth, mailPw, vault_unseal. What is asked of the value is less
where the word means nothing else."""
_BELOW = re.compile(
    r"(?P<name>(?i:password|passwd|passphrase|secret|(?:api|access|private|auth)[_-]?key"
    r"|(?<![a-z0-9])(?:pass|passcode|pw|pwd|unseal|token))"
    r"[\"']?[ \t]{0,3}[:=][ \t]{0,3}(?:[|>][+-]?[ \t]{0,3}|\\[ \t]{0,3})?\n[+ -]?[ \t]{1,40}[\"']?)"
    r"(?P<value>[^\s\"':#-][^\s\"'\n:]{2,400})(?=[\"']?[ \t]{0,9}(?:\n|$))"
)
"""A value that begins on the line below its name, as YAML has it, in a diff, too."""
_CODE = re.compile(r"(?:\b(?:if|elif|while|for|def|with|not|in|and|or|as|class)[ \t(][^\n]{0,200}|[(\[{][^\n]{0,200})$")
_OPTION = re.compile(
    r"(?<![\w-])--(?P<name>[A-Za-z][\w-]{0,60})(?P<between>(?:[ \t]{1,3}|[\"'],[ \t]{0,3})[\"']?)"
    r"(?P<value>[^\s\"'-][^\s\"']{0,4000})"
)
_SETENV = re.compile(r"\bsetenv[ \t]{1,3}(?P<name>\w{1,80})(?P<between>[ \t]{1,3}[\"']?)(?P<value>[^\s\"']{1,4000})")
_USER = re.compile(r"(?P<name>(?<![\w-])-u[ \t]{1,3}[\"']?[\w.@-]{1,80}:)(?=[^\s\"']{0,200}[0-9])[^\s\"':]{8,400}")
"""curl's user and password."""
_SPOKEN = re.compile(
    r"(?P<name>\b(?:password|passphrase)[ \t]{1,3}|(?<![\w-])pass=[\"']?"
    r"|(?<!\w)[A-Z][A-Z0-9_]{0,60}_(?:KEY|TOKEN|SECRET)[ \t]{1,3}(?=[A-Za-z0-9]{16}))"
    r"(?=[^\s\"']{0,200}\d)(?=[^\s\"']{0,200}[A-Za-z])[A-Za-z0-9_./+=-]{6,400}"
)
"""Of netrc, a sentence, or a list of names and values."""
_PIPED = re.compile(
    r"(?P<name>(?:(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PW|PASS)=[\"']?\$\([ \t]{0,3}"
    r"|\b(?=(?:echo|printf)[ \t][^\n|]{1,400}"
    r"\|[^\n|]{1,200}(?:-stdin\b|--with-token)))(?:echo|printf)[ \t]{1,3}(?:-n[ \t]{1,3})?[\"']?"
    r"|\b(?:kinit|sudo|docker|podman|gpg|cryptsetup|ssh-add)\b[^\n|;<]{0,200}<<<[ \t]{0,3}[\"']?)"
    r"(?P<value>[^\s\"'|)]{1,4000})"
)
"""What one command writes for another to read as its secret."""
_HEADER = re.compile(
    r"(?P<name>(?i:\bbearer[ \t]{1,3}"
    r"|\bauthorization\\?[\"']?[ \t]{0,3}[:=][ \t]{0,3}\\?[\"']?(?:basic|token|digest)[ \t]{1,3}))"
    r"[\w.~+/=-]{12,8000}"
)
_URL = re.compile(
    r"(?P<name>://(?:[^\s/:@\"'<>]{0,200}:)?)"
    r"(?P<value>[^\s/,\"'<>]{1,400}|(?<=:)(?!/|\d{1,5}/)[^\s@,\"'<>]{1,400})@"
)
_QUERY = re.compile(
    r"(?i)(?P<name>[?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|awsaccesskeyid|key"
    r"|access_token|auth)=)[^\s&\"'<>]{4,8000}"
)
_WEBHOOK = re.compile(
    r"(?P<name>(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks"
    r"|outlook\.office(?:365)?\.com/webhook)/)[\w/@-]{8,400}"
)
_PEM = re.compile(r"(?P<name>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END)[A-Za-z0-9+/=\s\\:,-]){1,20000}")



@dataclass(frozen=True, slots=True)
class _Program:
    """Where the command lines of some programs hold a secret."""

    names: str
    options: str = ""
    """Options whose value, in the next word or behind `=`, is one."""
    joined: str = ""
    """Options whose value stands in the same word: -pSECRET."""
    only: str = ""
    """The subcommand that they belong to; "": any."""
    after: str = ""
    """Words after which the next one is a secret, where it looks like one."""
    skipped: int = 0
    """Words between those and the secret."""
    keeps: str = ""
    """What is shown of a value: up to this and with it (user:SECRET). A value without it is no secret."""


_PROGRAMS = (
    _Program("wandb cargo vault swanlab", options="-k --key", after="login"),
    _Program("docker podman nerdctl buildah skopeo crane helm oras apptainer singularity", "-p", "-p", only="login"),
    _Program("docker podman buildah skopeo", "--creds --src-creds --dest-creds", keeps=":"),
    _Program("sshpass twine mongo mongosh mongodump mongorestore mongoexport mongoimport", "-p", "-p"),
    _Program("mysql mysqldump mysqladmin mysqlimport mysqlshow mariadb mariadb-dump 7z 7za 7zz", joined="-p"),
    _Program("redis-cli valkey-cli", "-a --pass"),
    _Program("openssl", "-pass -passin -passout -password", keeps="pass:"),
    _Program("openssl", "-k -K"),
    _Program("ssh-keygen", "-N -P", "-N -P"),
    _Program("clearml-init", "key secret"),
    _Program("curl", "-u --user -U --proxy-user", "-u -U", keeps=":"),
    _Program("curl", "--oauth2-bearer --pass --proxy-pass"),
    _Program("http https xh", "-a --auth", keeps=":"),
    _Program("smbclient", "-U --user", "-U", keeps="%"),
    _Program("lftp", "-u", keeps=","),
    _Program("ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldappasswd", "-w -s", "-w"),
    _Program("sqlcmd zip unzip", "-P", "-P"),
    _Program("huggingface-cli hf kubectl oc gh glab doctl", "--token --access-token -t"),
    _Program("consul nomad vault", "-token"),
    _Program("az", "-p", only="login"),
    _Program("aws", after="configure set", skipped=1),
    _Program("mc", after="alias set", skipped=3),
    _Program("keytool jarsigner", "-storepass -keypass -srcstorepass -deststorepass"),
    _Program("useradd usermod", "-p"),
)
_BY_NAME = {
    name: [program for program in _PROGRAMS if name in program.names.split()]
    for name in " ".join(program.names for program in _PROGRAMS).split()
}
_LONGEST_FIRST = sorted(map(re.escape, _BY_NAME), key=len, reverse=True)
_PROGRAM = re.compile(rf"(?<![\w.=-])(?:{'|'.join(_LONGEST_FIRST)})(?![\w.=:/-])")
_SHELL_WORD = re.compile(r"""[ \t]{1,20}((?:[^\s"'|;&<>()]|"[^"\n]{0,400}"|'[^'\n]{0,400}')++)""")
_LISTED_WORD = re.compile(r"""["'][ \t]{0,9},[ \t]{0,9}["']([^"'\n]{0,4000})(?=["'])""")
_MOST_WORDS = 60

_COLOUR = re.compile(r"\x1b?\[\d{0,3}(?:;\d{1,3}){0,4}m(?=[\w./+=~-])")
_COLOUR_AT_ALL = re.compile(r"\[[\d;]{0,19}m")
"""Quicker, as it begins with a character that is always there."""
"""A terminal's colour in front of more text, with its ESC or without, as many viewers leave it."""

_NO_SECRET = re.compile(
    r"(?i)(?:none|null|nil|true|false|yes|no|on|off|unset|empty|missing|redacted|hidden|x{3,}|[*<\[${].*)$", re.DOTALL
)
_NUMBER = re.compile(r"[-+]?[\d.,_]{1,40}(?:[eE][-+]?\d{1,4})?[A-Za-z/%]{0,6}$")
_MIXED = re.compile(r"(?=[^0-9]{0,400}[0-9])(?=[^A-Za-z]{0,400}[A-Za-z])[\w+/=.-]{1,4000}$")
"""A key as it is made: letters and digits in one word."""
_SOLID = re.compile(r"(?=[^0-9]{0,400}[0-9])(?=[^A-Za-z]{0,400}[A-Za-z])[A-Za-z0-9+/=]{1,4000}$")
"""And without what joins the words of a name."""
_SHORTEST_KEY = 6
_SHORTEST_TOKEN = 16
_SHORTEST_VARIABLE = 8


def masked(text: str) -> str:
    """The text with the values of secrets replaced by `***`. Text without any comes back as it is; masking twice is
    masking once. What does not look like a secret cannot be known, so a log stays something to handle with care."""
    found = _masked(text)
    if "[" not in text or not _COLOUR_AT_ALL.search(text):
        return found
    plain = _COLOUR.sub("", text)
    if plain != text:  # a colour inside a secret hides its shape
        more = _masked(plain)
        if more.count(MASK) > found.count(MASK):
            return more
    return found


def _masked(text: str) -> str:
    folded = text.casefold()
    for hint in _HINTS:
        if hint in folded:
            break
    else:
        return text
    text = _PEM.sub(_keep_name, text)
    text = _URL.sub(_url, text)
    text = _HEADER.sub(_keep_name, text)
    text = _SHAPES.sub(lambda found: (found["kept"] or found["jwt"]) + MASK, text)
    text = _commands(text)
    text = _OPTION.sub(_option, text)
    text = _by_name(text)
    text = _BELOW.sub(_below, text)
    text = _SETENV.sub(_option, text)
    text = _USER.sub(_keep_name, text)
    text = _SPOKEN.sub(_keep_name, text)
    text = _PIPED.sub(_piped, text)
    text = _QUERY.sub(_keep_name, text)
    return _WEBHOOK.sub(_keep_name, text)


def _commands(text: str) -> str:
    """The secrets of command lines, by the table."""
    parts: list[str] = []
    at = 0
    for found in _PROGRAM.finditer(text):
        for start, end in sorted(_secrets(text, found)):
            if start >= at:
                parts += [text[at:start], MASK]
                at = end
    return "".join((*parts, text[at:])) if parts else text


def _secrets(text: str, found: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Where the secrets of one command stand. It ends where another program of the table begins."""
    listed = text[found.end():found.end() + 1] in ("'", '"')
    pattern = _LISTED_WORD if listed else _SHELL_WORD
    programs = _BY_NAME[found[0]]
    plain: list[str] = []
    valued: list[_Program] = []
    at = found.end()
    for _ in range(_MOST_WORDS):
        word = pattern.match(text, at)
        if word is None:
            return
        (start, at), said = word.span(1), word[1].strip("\"'")
        if said in _BY_NAME:
            return
        if valued:
            for program in valued:
                yield from _of_value(program, text, start, at)
            valued = []
            continue
        fitting = [program for program in programs if not program.only or program.only in plain]
        name, equals, _ = said.partition("=")
        valued = [program for program in fitting if said in program.options.split()]
        if valued:
            continue
        for program in fitting:
            joined = next((each for each in program.joined.split() if said.startswith(each)), "")
            if equals and name in program.options.split():
                yield from _of_value(program, text, start + word[1].index("=") + 1, at)
            elif joined and len(said) > len(joined) and not said.startswith("--"):
                yield from _of_value(program, text, start + word[1].index(joined) + len(joined), at)
        if not said.startswith("-"):
            plain.append(said)
            for program in fitting:
                words = program.after.split()
                like_one = len(said) >= _SHORTEST_TOKEN and _MIXED.match(said)
                if words and plain[:-1 - program.skipped] == words and like_one:
                    yield from _of_value(program, text, start, at)


def _of_value(program: _Program, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """What of a value is masked: never its quotes, nor what the shell fills in."""
    while start < end and text[start] in "\"'":
        start += 1
    while start < end and text[end - 1] in "\"'":
        end -= 1
    if program.keeps:
        before, kept, _ = text[start:end].partition(program.keeps)
        start = start + len(before) + len(kept) if kept else end
    value = text[start:end]
    if value and MASK not in value and not _NO_SECRET.match(value):
        yield start, end


def _keep_name(found: re.Match[str]) -> str:
    return found["name"] + MASK


def _piped(found: re.Match[str]) -> str:
    value = found["value"]
    return found[0] if MASK in value or _NO_SECRET.match(value) else found["name"] + MASK


def _url(found: re.Match[str]) -> str:
    """A password always; a user without one only where it is as long as a token ("https://TOKEN@github.com")."""
    alone = found["name"] == "://"
    return found[0] if alone and len(found["value"]) < _SHORTEST_TOKEN else f"{found['name']}{MASK}@"


def _option(found: re.Match[str]) -> str:
    """"--hf-token VALUE", "setenv HF_TOKEN VALUE": as if "HF_TOKEN=VALUE" stood there, by the name's last word."""
    name, value = found["name"].replace("-", "_").upper(), found["value"]
    shown = _by_name(f"{name}={value}")
    return found[0] if shown == f"{name}={value}" else found[0][: found.end("between") - found.start()] + MASK


def _by_name(text: str) -> str:
    return _WORD.sub(_word, _NAMED.sub(_named, text))


def _word(found: re.Match[str]) -> str:
    value, start = found["value"], found.start()
    if (
        MASK in value or _NO_SECRET.match(value) or (not found["quote"] and ("(" in value or "[" in value))
        or _NUMBER.match(value) or value.startswith(("/", "~", "."))
    ):
        return found[0]
    before = found.string[max(start - 9, 0):start]
    alone = not re.search(r"[A-Za-z0-9][_.-]?$", before)
    if found["secret"]:
        is_one = "=" in found["between"] if alone else not before.casefold().endswith(("forward_", "backward_"))
    elif found["auth"]:
        is_one = len(value) >= _SHORTEST_VARIABLE and bool(_MIXED.match(value))
    elif alone:
        quoted = found["quote"] and "=" in found["between"] and len(value) >= _SHORTEST_KEY
        is_one = bool(quoted and _SOLID.match(value))
    else:
        is_one = len(value) >= _SHORTEST_TOKEN and bool(_SOLID.match(value))
    return found["name"] + found["between"] + MASK if is_one else found[0]


def _below(found: re.Match[str]) -> str:
    value, line = found["value"], found.string[max(found.start() - 200, 0): found.start()].rpartition("\n")[2]
    if MASK in value or _NO_SECRET.match(value) or _NUMBER.match(value) or "(" in value or _CODE.search(line):
        return found[0]
    if "token" in found["name"].casefold() and not (len(value) >= _SHORTEST_VARIABLE and _MIXED.match(value)):
        return found[0]
    return found["name"] + MASK


def _named(found: re.Match[str]) -> str:
    value = found["value"]
    whole = found["name"] + found["between"]
    if MASK in value or _NO_SECRET.match(value) or (not found["quote"] and ("(" in value or "[" in value)):
        return found[0]  # the last two: an expression of a program's text
    if found["password"]:
        return whole + MASK
    if _NUMBER.match(value) or value.startswith(("/", "~", ".")):
        return found[0]
    if found["key"]:
        return whole + MASK if len(value) >= _SHORTEST_KEY else found[0]
    if found["variable"]:
        return whole + MASK if len(value) >= _SHORTEST_TOKEN and _MIXED.match(value) else found[0]
    # "token" is a common word of this trade: of a variable's value less is asked than of a word in a sentence.
    if " " in value:
        return found[0]
    shortest = _SHORTEST_VARIABLE if found["token"].isupper() else _SHORTEST_TOKEN
    return whole + MASK if len(value) >= shortest and any(one.isdigit() for one in value) else found[0]
