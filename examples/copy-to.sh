#!/bin/sh
# Copy the examples to a place of their own, for users who cannot read this repository: copy-to.sh DIR
# makes DIR/train (with the simulator and its allocator beside train.py) and DIR/jobs.
set -eu
target=${1:?usage: copy-to.sh DIR}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$target/train" "$target/jobs"
cp "$here"/train/*.py "$target/train/"
rm -rf "$target/train/verl"
cp -r "$here/train/verl" "$target/train/verl"
rm -rf "$target/train/simulator"
mkdir "$target/train/simulator"
cp "$here"/../simulator/*.py "$target/train/simulator/"
package="$here/../runbook" # in the repository
[ -d "$package" ] || package="$here/../.." # in the installed package
rm -rf "$target/train/runbook"
mkdir -p "$target/train/runbook/allocator"
cp "$package/__init__.py" "$target/train/runbook/"
cp "$package"/allocator/*.py "$target/train/runbook/allocator/"
cp "$here"/jobs/* "$target/jobs/"
