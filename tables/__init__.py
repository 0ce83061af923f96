"""Data: releases (nccl/) and machines (machines/). Read through :mod:`importlib.resources`."""
