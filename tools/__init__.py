"""What keeps the workspace honest: scripts that CI, the hooks and people run alike."""
