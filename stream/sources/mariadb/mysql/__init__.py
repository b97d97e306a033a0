"""What MySQL does otherwise than MariaDB. The rest of the source is one for both."""
