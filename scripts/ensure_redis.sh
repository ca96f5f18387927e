#!/bin/sh
# Makes redis-server available for the tests of the Redis store, which start a server of their own.
# Never fails: without a server those tests are skipped and name the reason.
set -u

skipped="the tests of the Redis store will be skipped"

if command -v redis-server >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "redis-server is missing and there is no apt-get: $skipped. Mend: install Redis 6.2 or newer."
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "redis-server is missing: $skipped. Mend: sudo apt-get install redis-server"
    exit 0
fi

echo "installing redis-server with apt-get"
export DEBIAN_FRONTEND=noninteractive
# RUNLEVEL=1 keeps the package from starting a service on the default port.
if ! { apt-get -qq update && RUNLEVEL=1 apt-get -qq install -y --no-install-recommends redis-server; } </dev/null; then
    echo "apt-get could not install redis-server: $skipped. Mend: see apt-get's message above."
fi
