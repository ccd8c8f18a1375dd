"""Secrets around a failure are not shown; what only looks like one stays readable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.masking import masked
from runbook.report.vocabulary.clean import clean

# Made up here, in the shapes of the issuers; put together so that no scanner of repositories takes them for real.
LETTERS = "abcdefGHIJKLmnopqrSTUVWX0123456789"
HEX40 = "0123456789abcdef0123456789abcdef01234567"
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiJhbGljZSJ9" + "." + "c2lnbmF0dXJlLWhlcmU"

SECRETS = {
    "environment": (f"HF_TOKEN=hf_{LETTERS}", LETTERS),
    "exported": (f"+ export WANDB_API_KEY={HEX40}", HEX40),
    "declared": (f'declare -x HUGGING_FACE_HUB_TOKEN="hf_{LETTERS}"', LETTERS),
    "own variable": ("declare -x SITE_TOKEN='q7w8e9r0'", "q7w8e9r0"),
    "configuration": (f"{{'wandb': {{'api_key': '{HEX40}', 'project': 'x'}}}}", HEX40),
    "JSON in JSON": (f'"{{\\"api_key\\": \\"{HEX40}\\"}}"', HEX40),
    "option": (f"python train.py --hf-token hf_{LETTERS} --lr 1e-4", LETTERS),
    "option of another shape": ("serve --api-key Zk3-local-91x --port 8000", "Zk3-local-91x"),
    "name in PW": ("export DB_PW=hunter2abc", "hunter2abc"),
    "key of a call": (f'wandb.login(key="{HEX40}")', HEX40),
    "key of a file": (f'{{"username": "a", "key": "{HEX40[:32]}"}}', HEX40[:32]),
    "Discord webhook": ("curl https://discord.com/api/webhooks/123456/AbCdEfGhIjKl", "AbCdEfGhIjKl"),
    "Vault": ("hvs." + "CAESIJABCDEFGHIJKLMNOP", "CAESIJABCDEFGHIJKLMNOP"),
    "Docker Hub": ("dckr_pat_" + "ABCDEFGHIJKLMNOPQRST123", "ABCDEFGHIJKLMNOPQRST123"),
    "Replicate": ("r8_" + "a1" * 18, "a1" * 18),
    "AWS id": ("using credentials AKIA" + "IOSFODNN7EXAMPLE for s3", "IOSFODNN7EXAMPLE"),
    "AWS secret": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    "AWS session": ("AWS_SESSION_TOKEN=FwoGZXIvYXdzEBYaDHqa0AP1", "FwoGZXIvYXdz"),
    "bearer": ("headers: Authorization: Bearer abcDEF123456.xyz-987", "abcDEF123456"),
    "basic": ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNz"),
    "database": ("psycopg.OperationalError: postgresql://alice:s3cr3t!@db.example/runs failed", "s3cr3t!"),
    "clone": ("git clone https://ghp_" + LETTERS + "@github.com/a/b", LETTERS),
    "redis without user": ("redis://:hunter22@head:6379/0", "hunter22"),
    "signed address": ("GET https://b.s3.example/k?X-Amz-Signature=0f9e8d7c6b5a&X-Amz-Date=1", "0f9e8d7c6b5a"),
    "shared access": ("https://x.blob.example/c?sv=2024&sig=Zm9vYmFyYmF6%3D", "Zm9vYmFyYmF6"),
    "JWT": (f"SLURM_JWT={JWT}", JWT[10:]),
    "JWT in a sentence": (f"got {JWT} from the server", JWT[10:]),
    "netrc": (f"machine api.wandb.ai login user password {HEX40}", HEX40),
    "password with a comma": ("connect(password='pa,55 w;x')", "55 w;x"),
    "password with an at sign": ("redis://a:p@55w@head:6379/0", "55w"),
    "password": ("mysql.connect(host='db', password='pa55', user='a')", "pa55"),
    "openai": ("openai.AuthenticationError: key sk-proj-" + LETTERS, LETTERS),
    "slack": ("posting to https://hooks.slack.com/services/T0AAA/B0BBB/" + LETTERS, LETTERS),
    "ngc": ("NGC_CLI: nvapi-" + LETTERS, LETTERS),
    "one of this service": ("curl answered 401 for rbk_" + LETTERS + "-_" + LETTERS, LETTERS),
    "PEM": ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----", "b3Blbn"),
    "short password variable": ("export DB_PASS=hunter22", "hunter22"),
    "submit line": ("sbatch --export=ALL,SITE_TOKEN=q7w8e9r0t1y2,LR=1e-4 train.sh", "q7w8e9r0t1y2"),
    "a key of a service's own": (f"swanlab login; WANDB_KEY={HEX40}", HEX40),
    "a variable that is a key": (f"export REDIS_AUTH={LETTERS}", LETTERS),
    "a program's environment": (f'os.environ["WANDB_API_KEY"] = "{HEX40}"', HEX40),
    "C shell": (f"setenv WANDB_API_KEY {HEX40}", HEX40),
    "a command line in words": (f"['train.py', '--hf-token', '{LETTERS}']", LETTERS),
    "curl": ("curl -u ana:Zk3-local-91x https://x.example", "Zk3-local-91x"),
    "wandb": (f"+ wandb login --relogin {HEX40}", HEX40),
    "docker": ("docker login -u ana -p Hunter!x registry.example", "Hunter!x"),
    "docker, joined": ("sudo docker login registry.example -pHunter!x", "Hunter!x"),
    "sshpass": ("sshpass -p hunter ssh node1 hostname", "hunter"),
    "sshpass, quoted": ("sshpass -p'hun ter' ssh node1", "hun ter"),
    "mysql": ("mysql -u root -phunter runs -e 'select 1'", "hunter"),
    "openssl": ("openssl enc -aes-256-cbc -pass pass:hunter -in a", "hunter"),
    "openssl, behind a sign": ("openssl pkcs12 -passin pass:hunter -in a", "hunter"),
    "hugging face": ("huggingface-cli login --token=secretword", "secretword"),
    "hugging face, a word of its own": ("hf auth login --token secretword --add-to-git-credential", "secretword"),
    "aws configure": ("aws configure set aws_secret_access_key wJalrXUtnFEMIxK7MDENG", "wJalrXUtnFEMI"),
    "aws configure of a profile": ("aws configure set default.aws_session_token FwoGZXIvYXdzEBYa1", "FwoGZX"),
    "curl, a word": ("curl -sS -u ana:hunter https://x.example", "hunter"),
    "curl, joined": ("curl -uana:hunter https://x.example", "hunter"),
    "clone with a password": ("git clone https://ana:hunter@git.example/a/b", "hunter"),
    "kubectl": ("kubectl --token secretword get pods", "secretword"),
    "postgres": ("PGPASSWORD=hunter psql -h db runs", "hunter"),
    "redis": ("redis-cli -h head -a hunter ping", "hunter"),
    "an option with a sign": ("serve --api-key=Zk3local --port 8000", "Zk3local"),
    "header": ("curl -H 'Authorization: token abcDEF123456xyz' https://x", "abcDEF123456xyz"),
    "ldap": ("ldapsearch -x -D cn=admin -w hunter -b dc=x", "hunter"),
    "minio": ("mc alias set site https://s3.example ANA abcDEF123456xyz0", "abcDEF123456xyz0"),
    "zip": ("unzip -P hunter data.zip", "hunter"),
    "samba": ("smbclient //host/share -U ana%hunter", "hunter"),
    "a program in a folder": ("/usr/bin/sshpass -p hunter ssh node1", "hunter"),
    "words of a list": ("run(['sshpass', '-p', 'hunter', 'ssh', 'node1'])", "hunter"),
    "words of a list with a key": (f"run(['wandb', 'login', '{HEX40}'])", HEX40),
    "spoken": ("login with password hunter2", "hunter2"),
    "a short name": ("mount -t cifs -o user=a,pass=hunter2", "hunter2"),
    "an option in PW": ("serve --db-pw hunter2", "hunter2"),
    "piped": ("echo hunter2 | docker login -u x --password-stdin", "hunter2"),
    "a service's name alone": (f"WANDB={HEX40}", HEX40),
    "from a shell of its own": (f"export WANDB_API_KEY=$(echo {HEX40})", HEX40),
    "a password with a slash": ("git clone https://user:pa/ss@host/x", "pa/ss"),
    "from a string": ("kinit <<< hunter2", "hunter2"),
    "a name and a value": ("COMET_API_KEY abcdefghijklmnop1234", "abcdefghijklmnop1234"),
    "clearml": ("clearml-init key=ABCDEFGH12345678", "ABCDEFGH12345678"),
    "ssh-keygen": ("ssh-keygen -t ed25519 -N hunter2 -f k", "hunter2"),
    "two commands": ("docker login -p hunter && sshpass -p hunter2 ssh n", "hunter"),
    "PW alone": ("env PW=hunter2abc python train.py", "hunter2abc"),
    "TOK alone": (f"TOK={LETTERS} python train.py", LETTERS),
    "a name in TOK": (f"export HUB_TOK='{LETTERS}'", LETTERS),
    "a name in API": ("COMET_API=a1B2c3D4e5F6g7H8i9J0k1L2m", "a1B2c3D4e5F6g7H8i9J0k1L2m"),
    "a name in API, quoted": ('{"COMET_API": "a1B2c3D4e5F6g7H8i9J0k1L2m"}', "a1B2c3D4e5F6g7H8i9J0k1L2m"),
    "a lower-case name in pass": ("db_pass: hunter2pass9", "hunter2pass9"),
    "letters alone": ("smtp-pass = hunter", "hunter"),
    "quoted, with a blank": ("smtp_pass: 'mailPw 55'", "mailPw 55"),
    "a lower-case name in auth": ("tracker_auth: Zx9-alices-own-71", "Zx9-alices-own-71"),
    "a lower-case name in pw": ("mlflow_pw: s3cretPw77", "s3cretPw77"),
    "a name of two words in one": ("dbPass: 'hunter'", "hunter"),
    "PASS alone": ("PASS=hunter python train.py", "hunter"),
    "what unseals": ("vault_unseal: 8f3kd-99s-xx1", "8f3kd-99s-xx1"),
    "a short key": ('connect(key="s3cr3t")', "s3cr3t"),
    "a name in key": (f"site_key: {HEX40[:20]}", HEX40[:20]),
    "on the next line": ("db:\n  password:\n    hunter\n  port: 5432", "hunter"),
    "on the next line, folded": ("api_key: >-\n  Zk3local91x\nlr: 1", "Zk3local91x"),
    "on the next line of a diff": (" db_pass:\n-  hunter\n+  hunter\n lr: 1", "-  hunter"),
    "an option in pass": ("serve --db-pass hunter --port 1", "hunter"),
    "coloured": (f"\x1b[31mHF_\x1b[0mTOKEN=hf_\x1b[1m{LETTERS}\x1b[0m", LETTERS),
}

NO_SECRETS = (
    "forward_pass: ok backward_pass=done first_pass: 3", "compass: north bypass=all", "pass: the second",
    "    if password:\n        login\n", "secret:\n  secretName: x", "    if not token:\n        raise\n",
    "cache_key: layers.0.attention.key12 sort_key=length-of-sample-1", "key='loss' key=\"name\"",
    "auth: basic auth=kerberos",
    "max_tokens=4096 num_tokens: 128 tokens/s: 1532.7 token: 4096",
    "loss per token: 1.2345678901234567e-05",
    "eos_token_id=2 pad_token='<|endoftext|>' bos_token: <s> unk_token=[UNK]",
    "use_auth_token=None token=True hf_token: null",
    "tokenizer=Qwen/Qwen2.5-0.5B-Instruct token_type: bpe",
    "KeyError: 'layers.0.key' key=query_key_value.weight key: layers.11.attention.key",
    "monkey=banana123456 keyword: something-long-enough-1",
    "password=None passwd: null",
    "runbook ALL=(%training) NOPASSWD: ALL",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/alice/key.json",
    "tcp://10.0.0.1:29500 store, http://head:8265/#/jobs, file:///scratch/a@b/c",
    "git@github.com:a/b.git ssh://git@host/a",
    "sk-learn task-force-of-one disk-0123456789abcdef",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
    "Unexpected token: '}' at position 3",
    "The access key: missing. Secret: none",
    "    c = Client(address, authkey=process.current_process().authkey)",
    "    api_key=os.environ['KEY'], token=hf_hub.get_token(1)",
    "hf_transformers_cache hf_checkpoint_loader",
    "FIRST_PASS=2 FORWARD_PASS: 1.52e-03 BACKWARD_PASS=/scratch/pass",
    "SORT_KEY=length PARTITION_KEY=step SEED_KEY=1234567890123456 CACHE_PAT=iter_*",
    "docker run -u 1000:1000 -u root:root image",
    "docker run -p 8080:80 -p 127.0.0.1:5000:5000 image", "mkdir -p /scratch/ana; cp -p a b; ssh -p 2222 node1",
    "wandb login failed for user ana", "wandb: W&B API key is configured. Use `wandb login --relogin` to force",
    "sshpass -p $PASSWORD ssh node1", "mysql -p runs", "mysql --port=3306 -P 3306", "curl -u ana https://x.example",
    "aws configure set region eu-central-1", "openssl enc -pass env:WORD -in a", "zip -r data.zip data",
    "http 404 while loading https://x.example/a", "kubectl get pods -A",
    f"GIT_COMMIT={HEX40} wandb: commit {HEX40}", "FATAL: password authentication failed for user",
    "pass=2 of 3 pass=17",
    "ssh-keygen -t ed25519 -N '' -f key", "echo done | tee -a log", "echo $PASSWORD | docker login --password-stdin",
    "http://head:8265/a@b https://x.example/a:b@c", "kinit <<< $WORD",
    "API_KEY is missing, MODEL_KEY layers.0.weight_1234",
    "setenv OMP_NUM_THREADS 8; setenv PATH_KEY /usr/bin",
    "MAX_TOK=4096 EOS_TOK=<|endoftext|> PAD_TOK=reserved_special_token_0 TOK=gpt2 PAT=iter_*",
    "OPENAI_API=http://localhost:8000/v1 CHAT_API=OpenAICompatibleCompletions PW=16 PW=/scratch/pw",
    "batch['input_ids'] = x; state['token_count'] = 12345678",
)


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_is_not_shown(name: str) -> None:
    text, secret = SECRETS[name]
    shown = clean(text)
    assert secret not in shown
    assert "***" in shown
    assert clean(shown) == shown


@pytest.mark.parametrize("text", NO_SECRETS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_the_rest_of_the_line_stays() -> None:
    assert masked(f"a HF_TOKEN=hf_{LETTERS} b") == "a HF_TOKEN=hf_*** b"
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\n-----END PRIVATE KEY-----\nTraceback (most recent call last):"
    assert masked(pem).endswith("***-----END PRIVATE KEY-----\nTraceback (most recent call last):")
    assert masked("x --password pa55 --lr 1") == "x --password *** --lr 1"
    assert masked("u postgresql://alice:pw@db/x y") == "u postgresql://alice:***@db/x y"


PIECES = ("token", "=", ":", " ", "'", "password", "a1b2c3d4e5f6g7h8", "://", "@", "\n", "sk-", "***", "--", ",", "/",
          "echo ", "|", "pass=", "_pass", "_auth", "a_key", "\n  ", "kinit<<<", "-stdin", "A_KEY ", "KEY=$(")


@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_masking_twice_is_masking_once(text: str) -> None:
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize("seed", [
    "token", "token=", "--token ", "password:", "password \t", "://", "://a:", "eyJ", "eyJa.", "sk-", "sk-proj-",
    "hf_a", "bearer ", "api_key='", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "?sig=", "key", "\\\"", "a", "--",
    "authorization: ", "gh", "AKIA0", "A_KEY=a1", "-u a:", "setenv a ", "'--a', ",
    "echo ", "echo a|", "echo a |a ", "kinit ", "kinit<<< ", "A_A_", "KEY=$(", "KEY=$(echo ",
    "://a:/", "://a:a/", "pass=",
    "a_pass", "pass:\n ", "pass: >-\n", "auth='", "_pw=a1 ", "if pass:\n a ",
    "sshpass ", "sshpass -p a ", "mysql -", "curl -u '", "run('sshpass', ",
])
def test_a_hostile_line_costs_linear_time(seed: str) -> None:
    def cost(size: int) -> float:
        text = "token " + seed * (size // len(seed))
        started = time.process_time()
        masked(text)
        return time.process_time() - started

    assert cost(200_000) < 5 * cost(100_000) + 0.3
