"""Computes the hottest prompts' beginnings where they are about to be missed, ahead of traffic."""
