"""The router. Importing it has the modules of a request's path found as they were compiled, where they were."""

from router.native.compiled import prefer_compiled

prefer_compiled()
