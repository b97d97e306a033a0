"""What `freshet doctor` looks at: this machine, and the server that shall be a source."""
